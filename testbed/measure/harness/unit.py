"""Running one method of a ``unittest`` class as PyTorch's own suites are run."""

import unittest
from collections.abc import Callable

from testbed.measure.harness.case import Kind


def runner_of(tests: type[unittest.TestCase]) -> Callable[[Kind], str]:
    """Runs the method ``test_<kind>`` of the class; what it said of a failure, "" for none."""

    def run(kind: Kind) -> str:
        result = unittest.TestResult()
        tests(f"test_{kind.name.lower()}").run(result)
        told = [said for _, said in (*result.failures, *result.errors)]
        told += [f"skipped: {why}" for _, why in result.skipped]
        return "\n".join(told)

    return run
