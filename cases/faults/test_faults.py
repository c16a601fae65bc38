"""Every fault, on real ranks: what it does to a sound protocol, and how the run is judged."""

import pytest

from testbed.model.events import Enter, Fired
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase

PROTOCOLS = "batched separate fused deferred world local"


@pytest.mark.scenarios("fault-capacity-*", "fault-cpu-*", "fault-extra-[fl]*", "fault-late-*")
@pytest.mark.scenarios("fault-alloc-device-*", "fault-pause", "fault-skip-*")
def test_a_fault_ends_as_its_protocol_says(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("fault-out-*", "fault-heals", "fault-microbatch-lag", subjects=PROTOCOLS)
@pytest.mark.scenarios("fault-extra-pool-*", "fault-alloc-host-*", subjects=PROTOCOLS)
def test_a_fault_ends_as_each_protocol_says(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("fault-out-of-order-follower", subjects="batched fused")
def test_an_ack_that_is_overtaken_stalls_its_follower(scenario: Scenario, check: RunCase) -> None:
    ops = check(scenario).verdict.ops
    followers = scenario.topology.size - len(scenario.topology.leaders)
    # Each follower waits 3 steps for the first write; the second is there by then.
    assert (ops["stall_steps"], ops["max_stall"]) == (3 * followers, 3)


@pytest.mark.scenarios("fault-tie-break")
def test_a_tie_broken_otherwise_first_shows_in_the_victim(
    scenario: Scenario, check: RunCase
) -> None:
    divergence = check(scenario).verdict.first_divergence
    assert divergence is not None
    assert divergence.channel == "evict device"


@pytest.mark.scenarios("fault-free-traffic", topologies="pp2tp2", subjects=PROTOCOLS)
@pytest.mark.scenarios(
    "fault-free-traffic", topologies="pp4tp1 pp1tp4 pp2tp1cp2", subjects="batched"
)
def test_the_models_traffic_is_recorded_and_charged_to_nobody(
    scenario: Scenario, check: RunCase
) -> None:
    with_it, without = check(scenario), check(scenario.but(traffic=False))
    assert with_it.verdict.ops == without.verdict.ops
    topology = scenario.topology
    for rank in with_it.record.ranks:
        calls = [event for event in rank.events if isinstance(event, Enter)]
        own = [call for call in calls if call.caller == "model"]
        stage = topology.coords(rank.rank).pp
        assert sum(call.op == "recv" for call in own) == scenario.steps * (stage > 0)
        assert sum(call.op == "isend" for call in own) == scenario.steps * (stage + 1 < topology.pp)
        assert sum(call.op == "all_reduce" for call in own) == scenario.steps * (topology.tp > 1)
        assert {call.tag for call in own if call.op in ("isend", "recv")} <= {0}


@pytest.mark.scenarios("fault-kill-*", "fault-raise-*")
def test_the_last_that_a_dying_rank_records_is_what_kills_it(
    scenario: Scenario, check: RunCase
) -> None:
    result = check(scenario)
    (root,) = result.verdict.ranks
    fired = [event for event in result.record.ranks[root].events if isinstance(event, Fired)]
    assert [event.kind for event in fired] == [scenario.faults[0]["kind"]]
