"""What a scheduler calls besides the check: flushes, write-backs, storage drains, prefetch checks
with their stop policies, load-back polls.
"""

from collections.abc import Callable

import pytest

from cases.spread import DEFAULT, Test
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase

# Of the releases that the cases run on, those that have the call.
WITH_FLUSH = "sglang==0.5.23"
WITH_LOAD_POLL = "sglang==0.5.19 sglang==0.5.23"
EVERY_RELEASE = "sglang==0.5.18 sglang==0.5.19 sglang==0.5.23"


def calls(*names: str, others: str) -> Callable[[Test], Test]:
    """Mark a test to run these scenarios: the default subject at several topologies, others at
    one.
    """

    def mark(test: Test) -> Test:
        spread = (("pp2tp2 pp4tp1 pp2tp1cp2 pp1tp4", DEFAULT), ("pp2tp2", f"fused {others}"))
        for topologies, subjects in spread:
            test = pytest.mark.scenarios(*names, topologies=topologies, subjects=subjects)(test)
        return test

    return mark


@calls("call-flush", "call-flush-one-rank", others=f"deferred {WITH_FLUSH}")
def test_flushes(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@calls("call-write-back", "call-write-back-one-rank", others=EVERY_RELEASE)
def test_write_backs(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@calls("call-storage-drain", others=EVERY_RELEASE)
def test_storage_drains(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@calls("prefetch-*", others=EVERY_RELEASE)
def test_prefetch_checks(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@calls("load-back-poll*", others=WITH_LOAD_POLL)
def test_load_back_polls(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
