"""None controller: on the leader, on one follower, on one peer of the leader; storage off and on."""

import pytest

from cases.spread import EVERY, PIPELINES, SUBJECTS
from testbed.pytest_plugin import RunCase
from testbed.scenario import Scenario


@pytest.mark.scenarios(
    "none-controller-leader",
    "none-controller-leader-storage",
    "none-controller-follower",
    "none-controller-follower-storage",
    topologies=PIPELINES,
    subjects=SUBJECTS,
)
def test_a_stage_without_controller(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios(
    "none-controller-leader-peer",
    "none-controller-leader-peer-storage",
    "none-controller-cp-peer",
    topologies=EVERY,
    subjects=SUBJECTS,
)
def test_a_peer_of_the_leader_without_controller(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
