"""Skewed speed: followers slower and faster than the leader, one peer of the leader slower,
never ready.
"""

from cases.spread import CP, PIPELINES, spread
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase


@spread("skew-followers-slower-*", topologies=PIPELINES)
def test_slower_followers_stall_and_lose_nothing(scenario: Scenario, check: RunCase) -> None:
    result = check(scenario)
    (slow,) = scenario.faults
    followers = scenario.topology.size - len(scenario.topology.leaders)
    transfers = 3
    # Each transfer of each follower is commanded as many steps early as the follower is slower.
    assert result.verdict.ops["stall_steps"] == slow["steps"] * transfers * followers
    assert result.verdict.ops["max_stall"] == slow["steps"]


@spread("skew-followers-faster", topologies=PIPELINES)
@spread("skew-leader-peer-slower-3")
@spread("skew-cp-peer-slower-3", topologies=CP)
def test_a_leader_stage_that_is_the_slowest_stalls_nobody(
    scenario: Scenario, check: RunCase
) -> None:
    result = check(scenario)
    assert result.verdict.ops["stall_steps"] == 0


@spread("skew-followers-ms", topologies=PIPELINES)
def test_followers_really_block_on_events_in_milliseconds(
    scenario: Scenario, check: RunCase
) -> None:
    check(scenario)


@spread("skew-never-leader", "skew-never-follower", topologies=PIPELINES)
def test_a_stage_whose_events_never_fire(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@spread("skew-never-leader-peer")
def test_a_peer_of_the_leader_whose_events_never_fire(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
