"""A host that forks ranks of programs: ``testbed.fleet.fork_server`` with another life for them."""

import importlib
import os
from collections.abc import Sequence

from testbed.death import die_with_parent

HEAVY = (
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
)


def main(modules: Sequence[str] = HEAVY) -> None:
    """Entry point, as torchrun starts it. modules: imported once, before any rank is forked."""
    die_with_parent(os.getppid())
    # Only now torch: the imports take seconds in which the parent may die.
    from testbed.fleet.fork_server import serve
    from testbed.programs.life import run_rank
    from testbed.programs.plan import parts_of

    for module in modules:
        importlib.import_module(module)

    def prepare(program: str) -> None:
        # Imported by each of its ranks only: it may start threads, or end the process.
        parts_of(program)

    serve(prepare, run_rank)


if __name__ == "__main__":
    main()
