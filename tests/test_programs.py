"""Programs that make their own groups, on recorded ranks."""

from collections.abc import Iterator

import pytest

from cases.peers.table import results, took_effect
from testbed.fleet import Fleet
from testbed.model.errors import BadInput
from testbed.model.events import Enter
from testbed.model.record import RunRecord
from testbed.model.verdict import Outcome
from testbed.oracles import judge
from testbed.programs import HOSTS
from testbed.programs.plan import Break, Plan, parts_of, plan_of, scenario_of

ROOM = "tests.programs:"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(2, hosts=HOSTS) as made:
        yield made


def run(fleet: Fleet, function: str, *breaks: Break, recorded: bool = True) -> RunRecord:
    plan = Plan(breaks=list(breaks), recorded=recorded)
    return fleet.run(scenario_of(ROOM + function, 2, plan, deadline_ms=3000))


def entered(record: RunRecord, rank: int) -> list[str]:
    events = record.ranks[rank].events
    return [event.op for event in events if isinstance(event, Enter) and event.op != "barrier"]


def test_a_rank_finds_what_torchrun_would_give_it(fleet: Fleet) -> None:
    record = run(fleet, "environment")

    assert [one[0] for one in results(record)] == [
        {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
        }
        for rank in ("0", "1")
    ]


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "bare"])
def test_the_environment_leads_the_ranks_together(fleet: Fleet, recorded: bool) -> None:
    record = run(fleet, "summed", recorded=recorded)

    assert results(record) == [[6.0], [6.0]]
    assert entered(record, 0) == ["all_reduce", "all_reduce"] * recorded


def test_a_skipped_call_is_not_recorded(fleet: Fleet) -> None:
    record = run(fleet, "summed", Break("skip", 1, "all_reduce", 1))

    assert entered(record, 1) == ["all_reduce"]
    assert judge(record).outcome is not Outcome.OK


def test_who_asked_for_the_work_of_a_skipped_call_gets_a_finished_one(fleet: Fleet) -> None:
    record = run(fleet, "unreceived", Break("skip", 0, "isend"))

    assert results(record) == [[True], [True]]
    assert entered(record, 0) == []
    assert took_effect(record)


def test_an_isend_whose_message_nobody_takes_is_found(fleet: Fleet) -> None:
    verdict = judge(run(fleet, "unreceived"))

    # gloo's wait is for the receiver: rank 0 waits for it, rank 1 for rank 0 in the barrier.
    assert verdict.outcome is Outcome.DEADLOCK
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.channel == "world 0->1 tag 0"


def test_swapped_calls_are_made_the_other_way_round(fleet: Fleet) -> None:
    record = run(fleet, "two_messages", Break("swap", 0, "send"))
    sent = [event.tag for event in record.ranks[0].events if isinstance(event, Enter)][:2]

    assert sent == [2, 1]
    assert results(record)[1] == [[1.0, 2.0]]
    assert took_effect(record)


def test_another_dtype_is_recorded_as_such(fleet: Fleet) -> None:
    record = run(fleet, "summed", Break("dtype", 1, "all_reduce"))
    first = next(event for event in record.ranks[1].events if isinstance(event, Enter))

    assert first.dtype == "int32"
    assert judge(record).outcome is Outcome.VIOLATION


def test_a_damage_that_matches_nothing_says_so(fleet: Fleet) -> None:
    record = run(fleet, "summed", Break("skip", 1, "all_reduce", 7))

    assert not took_effect(record)
    assert judge(record).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("function", "told"), [("fails", "LookupError: of its own"), ("absent", "AttributeError")]
)
def test_what_a_program_raises_is_its_own_crash(fleet: Fleet, function: str, told: str) -> None:
    verdict = judge(run(fleet, function))

    assert verdict.outcome is Outcome.CRASH
    assert told in verdict.summary


@pytest.mark.parametrize("named", ["module", ":function", "module:", "module:not a name"])
def test_a_program_is_a_module_and_a_function(named: str) -> None:
    with pytest.raises(BadInput, match=r"give package\.module:function"):
        parts_of(named)


def test_a_scenario_of_another_kind_is_no_program() -> None:
    scenario = scenario_of(ROOM + "summed", 2, Plan()).but(workload={"kind": "scripted"})

    with pytest.raises(BadInput, match="no program's"):
        plan_of(scenario)


def test_a_plan_travels_in_its_scenario() -> None:
    plan = Plan(args={"rounds": 3}, recorded=False, breaks=[Break("swap", 1, "send", 4)])

    assert plan_of(scenario_of(ROOM + "summed", 2, plan)) == plan
