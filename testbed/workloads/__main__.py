"""``python -m testbed.workloads``: print a generated conversation trace as Mooncake JSONL.

Exit status: 0 printed, 2 bad arguments.
"""

import argparse
import sys
from collections.abc import Sequence

import msgspec

from testbed.workloads.conversation import MAX_REQUESTS, generated


def main(argv: Sequence[str] | None = None) -> int:
    """Print a trace; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.workloads",
        description="Print a generated conversation trace as Mooncake JSONL.",
    )
    parser.add_argument("--requests", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    options = parser.parse_args(argv)
    if not 1 <= options.requests <= MAX_REQUESTS:
        parser.error(f"--requests is {options.requests}: give a number from 1 to {MAX_REQUESTS}")
    for line in generated(options.seed, options.requests):
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
