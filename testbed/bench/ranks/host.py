"""A fork server for ranks of the benchmark: ``testbed.fleet.fork_server`` with another life."""

import os

from testbed.death import die_with_parent

MODULE = "testbed.bench.ranks.host"


def main() -> None:
    """Entry point, as torchrun starts it."""
    die_with_parent(os.getppid())
    # Only now torch: the imports take seconds in which the parent may die.
    from testbed import subjects
    from testbed.bench.plans import SEPARATOR
    from testbed.bench.ranks.life import run_rank
    from testbed.fleet.fork_server import serve

    def prepare(named: str) -> None:
        for subject in named.split(SEPARATOR):
            subjects.preload(subject)

    serve(prepare, run_rank)


if __name__ == "__main__":
    main()
