"""``make test-nccl``: the cases of ``cases/nccl``, a GPU for each rank.

``python -m testbed.measure.nccl_suite [--world N] [PYTEST OPTION ...]``. N is the number of GPUs by
default. Without a GPU: one line with the reason, exit status 0. With fewer than N: one line, 2.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence

from testbed.console import output
from testbed.device import gpus
from testbed.model.exit_status import AS_EXPECTED, BAD_INPUT

CASES = "cases/nccl"


def suite_command(world: int, options: Sequence[str]) -> list[str]:
    """pytest on the cases, over that many hosts."""
    hardware = ["--world", str(world), "--backend", "nccl", "--device", "cuda"]
    return [sys.executable, "-m", "pytest", CASES, "-rs", *hardware, *options]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite; returns its exit status."""
    return output.ended("test-nccl", lambda: _run_suite(argv))


def _run_suite(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="test-nccl", description="The cases over NCCL.")
    parser.add_argument("--world", type=int, metavar="N", help="default: the GPUs there are")
    options, for_pytest = parser.parse_known_args(argv)
    why_none = gpus.why_none()
    if why_none:
        print(f"test-nccl: skipped: {why_none}")
        return AS_EXPECTED
    there = gpus.check_usable()
    world = there if options.world is None else options.world
    if not 1 <= world <= there:
        print(
            f"test-nccl: NCCL needs a GPU per rank: WORLD is {world}, there are {there} GPUs here:"
            f" give 1 to {there}",
            file=sys.stderr,
        )
        return BAD_INPUT
    return subprocess.run(suite_command(world, for_pytest)).returncode


if __name__ == "__main__":
    sys.exit(main())
