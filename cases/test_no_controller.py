"""None controller: on the leader, on one follower, on one peer of the leader; storage off and
on.
"""

from cases.spread import CP, PIPELINES, spread
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase


@spread(
    "none-controller-leader",
    "none-controller-leader-storage",
    "none-controller-follower",
    "none-controller-follower-storage",
    topologies=PIPELINES,
)
def test_a_stage_without_controller(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@spread("none-controller-leader-peer", "none-controller-leader-peer-storage")
@spread("none-controller-cp-peer", topologies=CP)
def test_a_peer_of_the_leader_without_controller(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
