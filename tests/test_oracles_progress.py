"""progress: work that starves, work that is held back, and work that may just wait."""

from typing import Any

import pytest

from testbed.analysis.view import View
from testbed.cache import PrefetchOperation
from testbed.model.events import Arrived, Begin, Complete, End, Event, Final, Take
from testbed.model.record import RankRecord, RunRecord
from testbed.model.scenario import CallSpec, PrefetchStop, Scenario
from testbed.model.topology import Topology
from testbed.model.verdict import Finding, Outcome, Verdict
from testbed.oracles import judge, progress
from testbed.protocols import Batched, Groups, Party
from testbed.rank.assemble import assemble
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock
from testbed.subjects.minimal import MinimalSubject
from tests.record_builder import (
    Item,
    Model,
    Protocol,
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
        "write: w0 is held back, ready on ranks 2,3 since step 1: no ACK of w0 on ranks 0,1; "
        "its lock and its host pages are kept for good"
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
    assert "w0, or one before it, has an event that never fires on rank 1" in finding.summary


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
    assert finding.summary == "release: ranks 2,3 hold 1 item since step 1, and none is taken"


def test_a_storage_item_that_some_ranks_of_a_stage_alone_hold_is_told_with_those_without() -> None:
    items = [Item("release", 1, {"rank": 0}), Item("release", 1, {"rank": 0})]
    record = Model("pp2tp2", storage=True, items=items).record()

    verdict = judge(record)

    assert (verdict.outcome, verdict.oracle, verdict.step) == (Outcome.DEGRADED, "progress", 1)
    assert verdict.ranks == (1,)
    assert verdict.summary == (
        "release: rank 0 holds 2 items since step 1, and none is taken: rank 1 never had one; "
        "a host page is kept for good"
    )


def test_a_storage_item_whose_peer_has_no_controller_is_told() -> None:
    record = Model(
        "pp1tp2", storage=True, items=[Item("backup", 1, {"rank": 0})], without=(1,)
    ).record()

    (finding,) = found(record)

    assert "rank 1 has no such queue" in finding.summary


@pytest.mark.parametrize(("at", "told"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_storage_item_that_one_rank_has_not_held_for_long_is_not_told(
    at: int, told: bool
) -> None:
    record = Model("pp1tp2", storage=True, items=[Item("release", at, {"rank": 0})]).record()

    assert bool(found(record)) is told


def test_a_storage_item_that_a_peer_may_get_after_the_end_is_not_told() -> None:
    record = Model("pp1tp2", storage=True, items=[Item("backup", 1, {"rank": 0})]).record()
    last = record.scenario.steps - 1

    def under_way(final: Final) -> Final:
        return final._replace(pending=final.pending | {"backup": ["b0"]})

    assert len(found(record)) == 1
    assert found(changed(record, 1, Final, last, under_way)) == []


def test_a_storage_item_that_came_to_the_peers_later_is_silent() -> None:
    items = [Item("release", 0, {"rank": 0}), Item("release", 4, {"rank": 1})]

    assert found(Model("pp1tp2", storage=True, items=items).record()) == []


@pytest.mark.parametrize("protocol", ["separate", "batched"])
def test_a_pool_that_one_stage_alone_owns_is_its_own_affair(protocol: Protocol) -> None:
    items = [Item("sidecar:swa", step, "followers") for step in range(3)]

    assert found(Model("pp2tp2", protocol, storage=True, items=items).record()) == []


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


HEALS = {"kind": "slow-events", "steps": 1, "until_step": 2}


def starving(*faults: dict[str, Any], steps: int = 5) -> RunRecord:
    """A write that is ready everywhere in step 1 and that nobody ever completes."""
    model = Model("pp2tp1", steps=steps, transfers=[write("w0")], faults=list(faults))
    return never_completed(model.record(), "w0")


def test_what_starves_after_the_last_fault_is_over_is_a_violation() -> None:
    (finding,) = found(starving(HEALS))

    assert (finding.outcome, finding.step, finding.ranks) == (Outcome.VIOLATION, 2, (0, 1))
    assert finding.summary == (
        "write: w0 starves: ready on every rank since step 1, never completed, "
        "though the last fault ended with step 1"
    )


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [{"kind": "slow-events", "steps": 1}],
        [HEALS, {"kind": "no-controller", "on": {"rank": 1}}],
        [HEALS, {**HEALS, "until_step": 4}],
        [{**HEALS, "until_step": 3}],
    ],
)
def test_what_starves_under_a_fault_or_too_soon_after_it_is_not(
    faults: list[dict[str, Any]],
) -> None:
    (finding,) = found(starving(*faults))

    assert finding.outcome is Outcome.DEGRADED


def test_what_a_healed_fault_took_from_one_rank_is_still_only_held_back() -> None:
    transfers = [write("w0", on={"rank": 0})]
    record = Model("pp2tp1", transfers=transfers, faults=[HEALS], without=(1,)).record()

    outcomes = {finding.outcome for finding in found(record)}
    assert outcomes <= {Outcome.DEGRADED}


def lived(protocol: type[Batched], fault: dict[str, Any]) -> Verdict:
    """A real rank under a fault, with one write in each of its first steps."""
    writes = [{"at": step, "ready_after": 0} for step in range(4)]
    case = Scenario(
        name="c",
        topology=Topology(),
        workload={"kind": "scripted", "writes": writes},
        faults=[fault],
    )
    clock = Clock()
    recorder = ListRecorder(clock)
    groups = Groups(case.topology, 0)
    rank = assemble(case, 0, clock, recorder, groups)
    rank.subject._protocol = protocol(groups)  # type: ignore[attr-defined]
    for _ in range(case.steps):
        rank.run_step()
    rank.finish()
    shares = (RankRecord(0, "done", tuple(recorder.events)),)
    return judge(RunRecord(case, shares, "finished", 1.0, {"budget": "batched"}))


class BacksOff(Batched):
    """Safe, and gone for good at the first event that is not ready."""

    gone = False

    def check(self, party: Party) -> None:
        acks = party.controller.ack_write_queue if party.controller is not None else []
        self.gone = self.gone or any(not ack.finish_event.query() for ack in acks)
        if not self.gone:
            super().check(party)


def test_a_protocol_recovers_from_a_fault_or_is_told_that_it_did_not() -> None:
    fault = {"kind": "slow-events", "steps": 2, "from_step": 1, "until_step": 2}

    sound, lost = lived(Batched, fault), lived(BacksOff, fault)

    assert (sound.outcome, sound.ops["all_reduce"]) == (Outcome.OK, 0)
    assert (lost.outcome, lost.oracle, lost.step) == (Outcome.VIOLATION, "progress", 3)
    assert lost.summary == (
        "write: w1 starves: ready on every rank since step 3, never completed (and 2 more), "
        "though the last fault ended with step 1"
    )


def test_under_a_fault_that_stays_it_is_merely_degraded() -> None:
    fault = {"kind": "slow-events", "steps": 2, "from_step": 1}

    assert lived(BacksOff, fault).outcome is Outcome.DEGRADED


class NeverStops(MinimalSubject):
    """Hears of every page and never says that a prefetch is over."""

    def _may_stop(self, operation: PrefetchOperation | None) -> bool:
        return False


def asking(subject: type[MinimalSubject], steps: int, from_step: int = 0) -> RunRecord:
    """A real rank that asks in every step about a prefetch, of which the last page comes in step 3.

    Asked for in step 0, allocated in its check, under way from step 1 on, a step a page.
    """
    case = Scenario(
        name="c",
        topology=Topology(),
        storage=True,
        steps=steps,
        prefetch=PrefetchStop("wait_complete"),
        workload={"kind": "scripted", "prefetches": [{"at": 0, "page_after": 1}]},
        calls=[CallSpec("prefetch-check", from_step)],
    )
    clock = Clock()
    recorder = ListRecorder(clock)
    rank = assemble(case, 0, clock, recorder, Groups(case.topology, 0))
    rank.subject.__class__ = subject
    for _ in range(case.steps):
        rank.run_step()
    rank.finish()
    shares = (RankRecord(0, "done", tuple(recorder.events)),)
    return RunRecord(case, shares, "finished", 1.0, {})


def test_a_prefetch_that_is_complete_and_asked_about_in_vain_starves() -> None:
    (finding,) = found(asking(NeverStops, steps=6))

    assert (finding.outcome, finding.step, finding.ranks) == (Outcome.DEGRADED, 3, (0,))
    assert finding.summary == (
        "prefetch-check: f0 starves: complete on every rank in step 3, "
        "said to be under way up to step 5"
    )


def test_a_prefetch_counts_as_waiting_from_the_first_question_on() -> None:
    (finding,) = found(asking(NeverStops, steps=8, from_step=5))

    assert finding.step == 5


@pytest.mark.parametrize("steps", [4, 5])
def test_a_prefetch_that_has_not_waited_for_long_is_not_told(steps: int) -> None:
    assert found(asking(NeverStops, steps)) == []


def test_a_prefetch_that_is_over_when_it_is_complete_is_silent() -> None:
    assert found(asking(MinimalSubject, steps=8)) == []


def test_a_prefetch_that_lacks_a_page_on_one_rank_keeps_nobody_waiting() -> None:
    record = asking(NeverStops, steps=8)
    (share,) = record.ranks
    lacking = tuple(one for one in share.events if not isinstance(one, Arrived))
    case = record.scenario.but(topology=Topology(tp=2))

    def both(other: tuple[Event, ...]) -> RunRecord:
        ranks = (share, RankRecord(1, "done", other))
        return RunRecord(case, ranks, "finished", 1.0, {})

    assert found(both(lacking)) == []
    assert [finding.ranks for finding in found(both(share.events))] == [(0, 1)]
