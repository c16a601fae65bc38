"""Empty queues: on all ranks, the leader only, a follower only, one peer only; writes, loads, both."""

import pytest

from cases.spread import EVERY, PIPELINES, SUBJECTS
from testbed.pytest_plugin import RunCase
from testbed.scenario import Scenario


@pytest.mark.scenarios("empty-all", topologies=EVERY, subjects=SUBJECTS)
def test_nothing_to_do_anywhere(scenario: Scenario, check: RunCase) -> None:
    result = check(scenario)
    assert result.verdict.ops["queries"] == 0


@pytest.mark.scenarios(
    "empty-leader-[wlb]*",
    "empty-follower-[wlb]*",
    "empty-follower-peer-both",
    topologies=PIPELINES,
    subjects=SUBJECTS,
)
def test_one_stage_has_nothing(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios(
    "empty-leader-peer-*", "empty-cp-peer-both", topologies=EVERY, subjects=SUBJECTS
)
def test_one_peer_of_the_leader_has_nothing(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
