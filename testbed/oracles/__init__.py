"""Judges: pure functions from what one run left behind to findings, and from findings to a verdict.

One oracle a file: ``check(view) -> Iterable[Finding]``. What may not live here: anything that
talks to a live rank, reads a clock or touches the disk. Evidence rule for all of them: a rank
that was cut short (a crash, a stop, a hang) is compared only in what it had the chance to do.
"""

from testbed.analysis.view import View
from testbed.oracles.judge import REGISTRY, Oracle, available, check_claims, judge

__all__ = ["REGISTRY", "Oracle", "View", "available", "check_claims", "judge"]
