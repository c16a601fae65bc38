"""Empty queues: on all ranks, the leader only, a follower only, one peer only; writes, loads,
both.
"""

from cases.spread import CP, PIPELINES, spread
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase


@spread("empty-all")
def test_nothing_to_do_anywhere(scenario: Scenario, check: RunCase) -> None:
    result = check(scenario)
    assert result.verdict.ops["queries"] == 0


@spread(
    "empty-leader-[wlb]*", "empty-follower-[wlb]*", "empty-follower-peer-both", topologies=PIPELINES
)
def test_one_stage_has_nothing(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@spread("empty-leader-peer-*")
@spread("empty-cp-peer-both", topologies=CP)
def test_one_peer_of_the_leader_has_nothing(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
