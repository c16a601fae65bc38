"""Runs cases in a harness that lives in this process: ``drive DRIVER WORLD KIND...``.

Says a line of JSON when it is ready, and one after each case: wall time in milliseconds, whether it
passed, what was said.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable

from testbed.measure.harness.case import Kind

DRIVERS = ("spawn", "multiprocess", "continuous")

RunsCase = Callable[[Kind], str]
"""Runs one case; what it said of a failure, "" for none."""


def main() -> None:
    """Run the cases and leave."""
    driver, world, *kinds = sys.argv[1:]
    module = importlib.import_module(f"testbed.measure.harness.{driver}")
    run: RunsCase = module.runner(int(world))
    print(json.dumps({"ready": driver}), flush=True)
    for kind in map(Kind, kinds):
        began = time.monotonic()
        said = run(kind)
        ms = (time.monotonic() - began) * 1e3
        print(json.dumps({"ms": ms, "passed": not said, "said": said}), flush=True)


if __name__ == "__main__":
    main()
