"""Skewed speed: followers slower and faster than the leader, one peer of the leader slower, never ready."""

import pytest

from cases.spread import EVERY, PIPELINES, SUBJECTS
from testbed.pytest_plugin import RunCase
from testbed.scenario import Scenario


@pytest.mark.scenarios("skew-followers-slower-*", topologies=PIPELINES, subjects=SUBJECTS)
def test_slower_followers_stall_and_lose_nothing(scenario: Scenario, check: RunCase) -> None:
    result = check(scenario)
    (slow,) = scenario.faults
    followers = scenario.topology.size - len(scenario.topology.leaders)
    transfers = 3
    # Each transfer of each follower is commanded as many steps early as the follower is slower.
    assert result.verdict.ops["stall_steps"] == slow["steps"] * transfers * followers
    assert result.verdict.ops["max_stall"] == slow["steps"]


@pytest.mark.scenarios(
    "skew-followers-faster", "skew-*-peer-slower-3", topologies=EVERY, subjects=SUBJECTS
)
def test_a_leader_stage_that_is_the_slowest_stalls_nobody(
    scenario: Scenario, check: RunCase
) -> None:
    result = check(scenario)
    assert result.verdict.ops["stall_steps"] == 0


@pytest.mark.scenarios("skew-followers-ms", topologies=PIPELINES, subjects=SUBJECTS)
def test_followers_really_block_on_events_in_milliseconds(
    scenario: Scenario, check: RunCase
) -> None:
    check(scenario)


@pytest.mark.scenarios(
    "skew-never-leader", "skew-never-follower", topologies=PIPELINES, subjects=SUBJECTS
)
def test_a_stage_whose_events_never_fire(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("skew-never-leader-peer", topologies=EVERY, subjects=SUBJECTS)
def test_a_peer_of_the_leader_whose_events_never_fire(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
