"""progress: work that starves, work that is held back, and work that may just wait."""

import pytest

from testbed.oracles import judge, progress
from testbed.oracles.view import View
from testbed.record import RunRecord
from testbed.trace.events import Begin, Complete, End, Event, Take
from testbed.verdict import Finding, Outcome
from tests.record_builder import (
    Item,
    Model,
    changed,
    cut,
    load,
    with_events,
    write,
)


def found(record: RunRecord) -> list[Finding]:
    return list(progress.check(View(record)))


def never_completed(record: RunRecord, key: str) -> RunRecord:
    """The record as it would be had nobody ever completed ``key``."""

    def edit(events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for one in events:
            if isinstance(one, Complete) and one.key == key:
                continue
            if isinstance(one, Begin) and one.step > 1:
                one = one._replace(write=[[key, True], *one.write])
            if isinstance(one, End) and one.step > 0:
                one = one._replace(write=[key, *one.write], pending_write=[key])
            kept.append(one)
        return kept

    for rank in range(record.scenario.topology.size):
        record = with_events(record, rank, edit)
    return record


def test_work_that_is_ready_everywhere_and_never_completed_starves() -> None:
    record = Model("pp2tp1", transfers=[write("w0")]).record()

    (finding,) = found(never_completed(record, "w0"))

    assert (finding.outcome, finding.step, finding.ranks) == (Outcome.DEGRADED, 1, (0, 1))
    assert finding.summary == (
        "write: w0 starves: ready on every rank since step 1, never completed"
    )


def test_a_leader_without_a_controller_holds_the_followers_back() -> None:
    verdict = judge(Model("pp2tp2", transfers=[write("w0")], without=(0, 1)).record())

    assert (verdict.outcome, verdict.oracle, verdict.ranks) == (
        Outcome.DEGRADED,
        "progress",
        (0, 1),
    )
    assert verdict.summary == (
        "write: w0 is held back, ready on ranks 2,3 since step 1: no ACK of w0 on ranks 0,1"
    )


def test_one_peer_without_a_controller_holds_all_back() -> None:
    transfers = [write("w0"), load("l0"), write("w1")]

    verdict = judge(Model("pp2tp2", transfers=transfers, without=(1,)).record())

    assert verdict.outcome is Outcome.DEGRADED
    assert [finding.ranks for finding in verdict.findings] == [(1,), (1,)]
    assert verdict.summary.endswith("(and 1 more)")


def test_an_event_that_never_fires_on_a_leader_holds_all_back() -> None:
    transfers = [write("w0", slow={1: None}), write("w1")]

    (finding,) = found(Model("pp2tp2", transfers=transfers).record())

    assert finding.ranks == (1,)
    assert "an event that never fires, at or before w0, on rank 1" in finding.summary


@pytest.mark.parametrize("slow", [{1: 3}, {1: 4}, {1: 30}, {1: 30, 2: 30}])
def test_work_that_some_rank_will_have_ready_later_is_not_held_back(
    slow: dict[int, int | None],
) -> None:
    assert found(Model("pp1tp4", steps=5, transfers=[write("w0", slow=slow)]).record()) == []


def test_with_too_few_steps_left_nothing_is_told() -> None:
    transfers = [write("w0", at=3, ready=0)]

    assert found(Model("pp2tp1", steps=5, transfers=transfers, without=(0,)).record()) == []
    assert len(found(Model("pp2tp1", steps=6, transfers=transfers, without=(0,)).record())) == 1


def test_a_result_that_is_used_one_step_late_is_in_time_but_three_steps_late_is_not() -> None:
    def delayed_to(last: int) -> RunRecord:
        record = Model("pp1tp1", steps=6, transfers=[write("w0")]).record()

        def edit(events: list[Event]) -> list[Event]:
            kept: list[Event] = []
            for one in events:
                if isinstance(one, Complete):
                    continue
                if isinstance(one, Begin) and 1 < one.step <= last:
                    one = one._replace(write=[["w0", True]])
                if isinstance(one, End) and 1 <= one.step < last:
                    one = one._replace(write=["w0"], pending_write=["w0"])
                if isinstance(one, End) and one.step == last:
                    kept.append(Complete(last, 0, "write", "w0", True, 0))
                kept.append(one)
            return kept

        return with_events(record, 0, edit)

    assert found(delayed_to(2)) == []
    (finding,) = found(delayed_to(4))
    assert finding.summary == "write: w0 was ready on every rank in step 1, completed in step 4"


def test_storage_items_that_lie_on_the_whole_stage_are_told() -> None:
    record = Model(
        "pp2tp2", "fused", storage=True, items=[Item("release", 1, "followers")]
    ).record()

    (finding,) = found(record)

    assert (finding.step, finding.ranks) == (1, (2, 3))
    assert "items on all of stage 1 since step 1, none taken" in finding.summary


def test_storage_items_on_a_part_of_the_stage_may_lie() -> None:
    items = [Item("release", 1, {"tp": 0})]

    assert found(Model("pp2tp2", storage=True, items=items).record()) == []


def test_storage_items_that_are_taken_are_silent() -> None:
    items = [Item("release", step) for step in range(5)]
    record = Model("pp2tp2", storage=True, items=items).record()

    assert any(isinstance(one, Take) for one in record.ranks[0].events)
    assert found(record) == []


def test_a_run_that_broke_off_is_judged_by_why_it_did() -> None:
    record = Model("pp2tp1", transfers=[write("w0")], without=(0,)).record()

    record = cut(record, 0, lambda one: isinstance(one, End) and one.step == 4, exit="stopped")

    assert found(record) == []


def test_ready_on_one_rank_only_for_a_moment_is_not_overdue() -> None:
    record = Model("pp1tp2", steps=5, transfers=[write("w0", ready=9)]).record()
    ready = changed(record, 0, Begin, 4, lambda one: one._replace(write=[["w0", True]]))

    assert found(ready) == []
