"""The judge: which of several truths becomes the verdict."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from testbed.analysis.view import View
from testbed.model.errors import BadInput
from testbed.model.events import (
    Begin,
    Complete,
    End,
    Enter,
    Event,
    Exit,
    Final,
    Fired,
    Frame,
    Raised,
)
from testbed.model.record import RunRecord
from testbed.model.verdict import Finding, Outcome
from testbed.oracles import REGISTRY, available, check_claims, judge
from tests.record_builder import Model, changed, cut, inserted, load, with_rank, without, write

SIGKILL, SIGABRT = 9, 6


def stopped_at(record: RunRecord, rank: int, step: int, **share: Any) -> RunRecord:
    """The rank's record ends with the start of that step."""
    return cut(
        record,
        rank,
        lambda one: isinstance(one, Begin) and one.step == step,
        **{"exit": "stopped", **share},
    )


def entered(record: RunRecord, rank: int, step: int, **share: Any) -> RunRecord:
    """The rank's record ends inside its first torch.distributed call of that step but a wait."""
    return cut(
        record,
        rank,
        lambda one: isinstance(one, Enter) and one.step == step and one.op != "wait",
        **{"exit": "stopped", **share},
    )


def raised(record: RunRecord, rank: int, event: Raised) -> RunRecord:
    events: tuple[Event, ...] = (*record.ranks[rank].events, event)
    return with_rank(record, rank, exit="raised", events=events)


def closed(step: int) -> Raised:
    return Raised(step, 0, "RuntimeError", "Connection closed by peer [127.0.0.1]", "", "recv")


# error


def test_an_oracle_that_raises_is_an_error_by_name() -> None:
    def broken(view: View) -> Iterable[Finding]:
        raise ZeroDivisionError("division by zero")

    verdict = judge(Model().record(), {**REGISTRY, "pairing": broken})

    assert (verdict.outcome, verdict.summary) == (
        Outcome.ERROR,
        "oracle pairing failed: ZeroDivisionError: division by zero",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        Finding("safety", Outcome.VIOLATION, 0, (), "of another oracle"),
        Finding("pairing", Outcome.CRASH, 0, (), "not an oracle's to say"),
    ],
)
def test_an_oracle_that_breaks_the_rules_is_an_error(wrong: Finding) -> None:
    assert judge(Model().record(), {"pairing": lambda view: [wrong]}).outcome is Outcome.ERROR


def test_trouble_of_the_testbed_is_an_error_whatever_else_is_true() -> None:
    record = Model(transfers=[write("w0", on="leader")]).record()

    verdict = judge(replace(record, trouble=("host 1 is gone",)))

    assert (verdict.outcome, verdict.summary) == (Outcome.ERROR, "host 1 is gone")


def test_a_missing_rank_and_a_full_recorder_are_errors() -> None:
    record = Model().record()

    missing = judge(replace(record, ranks=record.ranks[:3]))
    full = judge(with_rank(record, 1, overflow=True))

    assert (missing.outcome, missing.summary) == (Outcome.ERROR, "rank 3 left no record")
    assert full.outcome is Outcome.ERROR


@pytest.mark.parametrize("kind", [Final, End])
def test_a_rank_that_was_done_but_did_not_record_it_is_an_error(kind: type[Event]) -> None:
    record = without(Model().record(), 2, lambda one: isinstance(one, kind))

    assert judge(record).outcome is Outcome.ERROR


def test_a_fault_that_never_took_effect_is_an_error() -> None:
    record = Model(faults=[{"kind": "never-ready", "on": "leader"}]).record()

    verdict = judge(record)

    assert verdict.outcome is Outcome.ERROR
    assert "fault 0 (never-ready) never took effect" in verdict.summary


def test_a_fault_that_fired_on_one_rank_is_none() -> None:
    record = Model(faults=[{"kind": "never-ready"}]).record()
    fired: tuple[Event, ...] = (Fired(1, 0, 0, "never-ready", "w0"), *record.ranks[1].events)

    assert judge(with_rank(record, 1, events=fired)).outcome is Outcome.OK


def test_a_fault_whose_turn_never_came_does_not_hide_the_crash() -> None:
    record = Model(faults=[{"kind": "never-ready"}], transfers=[write("w0", on="leader")]).record()

    verdict = judge(record)

    assert verdict.outcome is Outcome.VIOLATION
    assert any("never took effect" in note for note in verdict.notes)


# violations among themselves


def test_the_earliest_violation_is_told_not_the_first_oracle() -> None:
    record = Model(transfers=[write("w0"), load("l0")]).record()
    record = changed(record, 3, Enter, 3, lambda one: one._replace(op="barrier"))
    record = changed(record, 2, Complete, 1, lambda one: one._replace(bad_pages=1))

    verdict = judge(record)

    assert (verdict.oracle, verdict.step) == ("integrity", 1)
    assert len(verdict.findings) > 1


def test_in_one_step_the_order_of_the_oracles_decides() -> None:
    record = Model("pp1tp2", transfers=[write("w0")]).record()
    record = changed(record, 1, Complete, 1, lambda one: one._replace(ready=False, bad_pages=1))
    record = changed(record, 0, Complete, 1, lambda one: one._replace(key="w9"))

    assert [finding.oracle for finding in judge(record).findings][:3] == [
        "agreement",
        "safety",
        "conservation",
    ]


# crash


def killed_in_step_2() -> RunRecord:
    record = Model().record()
    record = stopped_at(record, 2, 2, exit="signal", signal=SIGKILL)
    record = raised(entered(record, 3, 2), 3, closed(2))
    for rank in (0, 1):
        record = stopped_at(record, rank, 3)
    return replace(record, ended="broken")


def test_a_killed_rank_is_the_root_and_lost_connections_are_collateral() -> None:
    verdict = judge(killed_in_step_2())

    assert (verdict.outcome, verdict.step, verdict.ranks) == (Outcome.CRASH, 2, (2,))
    assert verdict.summary == "rank 2 died by SIGKILL, step 2"
    assert any("rank 3 lost its connection inside" in one for one in verdict.notes)
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.minority == (2,)


def test_an_exception_of_a_ranks_own_is_the_root_even_if_a_connection_broke_earlier() -> None:
    record = raised(entered(Model().record(), 0, 1), 0, closed(1))
    record = stopped_at(record, 3, 2)
    record = raised(record, 3, Raised(2, 0, "KeyError", "'w0'", "", ""))
    for rank in (1, 2):
        record = stopped_at(record, rank, 2)

    verdict = judge(replace(record, ended="broken"))

    assert (verdict.outcome, verdict.ranks) == (Outcome.CRASH, (3,))
    assert verdict.summary == "rank 3 raised KeyError: 'w0', step 2"


def test_a_rank_that_dies_after_its_last_step_is_a_crash_never_a_pass() -> None:
    record = with_rank(Model().record(), 1, exit="signal", signal=SIGKILL)

    assert judge(replace(record, ended="broken")).outcome is Outcome.CRASH


def test_a_rank_that_died_before_it_recorded_anything_is_a_crash() -> None:
    record = with_rank(Model().record(), 1, exit="signal", signal=SIGABRT, events=())
    for rank in (0, 2, 3):
        record = stopped_at(record, rank, 0)

    verdict = judge(replace(record, ended="broken"))

    assert (verdict.outcome, verdict.ranks, verdict.step) == (Outcome.CRASH, (1,), -1)


def test_a_violation_after_the_crash_does_not_override_it() -> None:
    record = changed(killed_in_step_2(), 0, End, 2, lambda one: one._replace(tree=99))
    record = cut(record, 2, lambda one: isinstance(one, Begin) and one.step == 1)

    verdict = judge(record)

    assert (verdict.outcome, verdict.step) == (Outcome.CRASH, 1)
    assert any(note.startswith("after that, agreement") for note in verdict.notes)


def test_a_violation_before_the_crash_overrides_it() -> None:
    record = changed(killed_in_step_2(), 0, End, 1, lambda one: one._replace(tree=99))

    verdict = judge(record)

    assert (verdict.outcome, verdict.oracle, verdict.step) == (Outcome.VIOLATION, "agreement", 1)
    assert "then crash: rank 2 died by SIGKILL, step 2" in verdict.notes


def test_a_crash_is_the_root_of_the_standstill_it_leaves_behind() -> None:
    record = stopped_at(Model("pp1tp2").record(), 0, 2)
    record = raised(record, 0, Raised(2, 0, "RuntimeError", "CUDA error: sick", "", ""))

    verdict = judge(replace(entered(record, 1, 2), ended="deadlock"))

    assert (verdict.outcome, verdict.ranks) == (Outcome.CRASH, (0,))


# hang and deadlock


def test_a_rank_that_waits_for_an_event_is_the_root_of_a_hang() -> None:
    record = Model(transfers=[write("w0", slow={2: None})]).record()
    record = entered(record, 0, 1)

    verdict = judge(record)

    assert record.ended == "deadline"
    assert (verdict.outcome, verdict.step, verdict.ranks) == (Outcome.HANG, 1, (1, 2, 3))
    assert "rank 2 waits for the event of w0, step 1" in verdict.summary
    assert "behind: rank 0" in verdict.summary


def test_a_hang_is_no_crash_though_ranks_raise_while_they_are_being_stopped() -> None:
    record = Model("pp2tp1").record()
    record = stopped_at(record, 0, 2)
    record = raised(entered(record, 1, 2), 1, closed(2))

    verdict = judge(replace(record, ended="deadline"))

    assert (verdict.outcome, verdict.ranks) == (Outcome.HANG, (0,))
    assert verdict.summary == (
        "rank 0 made no send #2 of pp[tp0] 0->1 tag 77; is not inside a recorded operation, "
        "step 2, its last operation was isend #1 of pp[tp0] 0->1 tag 77 "
        "(check>agree>pass_down), step 1; behind: rank 1"
    )
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.did["1"] == (
        "waits in recv #2 of pp[tp0] 0->1 tag 77 (check>agree>pass_down) for rank 0, step 2"
    )


def test_who_waits_for_a_rank_that_has_left_is_the_root() -> None:
    record = Model("pp1tp2").record()
    left = without(record, 0, lambda one: isinstance(one, Enter | Exit) and one.step == 4)

    verdict = judge(replace(entered(left, 1, 4), ended="deadline"))

    assert (verdict.outcome, verdict.ranks) == (Outcome.HANG, (1,))
    assert "all_reduce #4 of tp[pp0] (check>agree>reduce) for rank 0" in verdict.summary


def test_a_deadlock_is_told_with_its_cycle() -> None:
    record = replace(Model("pp1tp2").record(), ended="deadlock", promises={})
    for rank in (0, 1):
        record = entered(record, rank, 2)
    record = changed(record, 1, Enter, 2, lambda one: one._replace(group="world", ordinal=0))

    verdict = judge(record)

    assert (verdict.outcome, verdict.step, verdict.ranks) == (Outcome.DEADLOCK, 2, (0, 1))
    assert "nobody can move" in verdict.summary


def test_a_deadlock_behind_a_rank_that_left_singles_that_rank_out() -> None:
    record = replace(Model("pp1tp2").record(), promises={})
    record = without(record, 0, lambda one: isinstance(one, Enter | Exit))

    verdict = judge(replace(entered(record, 1, 0), ended="deadlock"))

    assert (verdict.outcome, verdict.ranks) == (Outcome.DEADLOCK, (1,))
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.minority == (0,)


def test_a_chain_that_ends_at_a_rank_that_left_is_not_told_as_a_cycle() -> None:
    record = replace(Model("pp3tp1").record(), promises={})
    record = without(record, 0, lambda one: isinstance(one, Enter | Exit))
    record = entered(entered(record, 1, 0), 2, 0)

    verdict = judge(replace(record, ended="deadlock"))

    assert verdict.ranks == (1,)
    first, closing, behind = verdict.summary.split("; ")
    assert first.startswith("rank 1 waits in recv #0")
    assert first.endswith("for rank 0")
    assert closing == "rank 0 left its loop without it"
    assert behind.startswith("stuck behind: rank 2 waits in recv #0")
    (note,) = verdict.notes
    assert note == behind.removeprefix("stuck behind: ") + ": stuck behind"


def test_a_deadlock_that_the_record_does_not_show_is_still_one() -> None:
    record = Model("pp1tp2").record()
    for rank in (0, 1):
        record = stopped_at(record, rank, 2)

    assert judge(replace(record, ended="deadlock")).outcome is Outcome.DEADLOCK


def test_ends_that_contradict_the_ranks_are_errors() -> None:
    record = Model().record()
    merely_stopped = stopped_at(record, 1, 2)

    assert judge(replace(record, ended="deadline")).outcome is Outcome.ERROR
    assert judge(merely_stopped).outcome is Outcome.ERROR


# numbers and names


def test_numbers_are_counted_by_role() -> None:
    verdict = judge(Model("pp2tp2", transfers=[write("w0", ready=1)], steps=4).record())

    assert verdict.ops == {
        "sync_per_step": 2.0,
        "sync_per_step_leader": 2.0,
        "sync_per_step_follower": 1.0,
        "all_reduce": 8,
        "sends": 8,
        "recvs": 8,
        "bytes": 16 * 8,
        "queries": 4,
        "stall_steps": 0,
        "max_stall": 0,
    }


def test_a_verdict_is_plain_json() -> None:
    verdict = judge(Model(transfers=[write("w0", on="leader")]).record()).to_json()

    assert (verdict["verdict"], verdict["oracle"]) == ("violation", "agreement")
    assert verdict["first_divergence"]["minority"] == [2, 3]


def test_every_oracle_has_its_line() -> None:
    assert list(available()) == list(REGISTRY)
    assert all(line.endswith(".") and "\n" not in line for line in available().values())


def test_claims_are_checked_by_name() -> None:
    check_claims(["stage-local", "budget:batched"])

    with pytest.raises(BadInput, match="claim 'stage-locale' is unknown"):
        check_claims(["stage-locale"])


# where it began


def test_every_verdict_but_ok_has_a_first_divergence() -> None:
    model = Model("pp1tp2", transfers=[write("w0")]).record()
    records = [
        replace(model, trouble=("host 1 is gone",)),
        replace(model, ranks=model.ranks[:1]),
        with_rank(model, 1, overflow=True),
        killed_in_step_2(),
        Model(transfers=[write("w0", slow={2: None})]).record(),
        replace(entered(without_calls(model, 0), 1, 0), ended="deadlock", promises={}),
        Model(transfers=[write("w0", slow={0: None})]).record(),
        Model(transfers=[write("w0", on="leader")]).record(),
    ]

    verdicts = [judge(record) for record in records]

    assert {verdict.outcome for verdict in verdicts} == set(Outcome) - {Outcome.OK}
    assert all(verdict.first_divergence is not None for verdict in verdicts)
    assert judge(model).first_divergence is None


def without_calls(record: RunRecord, rank: int) -> RunRecord:
    return without(record, rank, lambda one: isinstance(one, Enter | Exit))


def test_records_that_are_no_evidence_single_out_the_ranks_they_lack() -> None:
    record = Model("pp1tp3").record()

    first = judge(with_rank(replace(record, ranks=record.ranks[:2]), 1, overflow=True))

    assert first.first_divergence is not None
    assert first.first_divergence.minority == (1, 2)
    assert first.first_divergence.did["2"] == "left no record"


def test_a_deadlock_began_at_the_operation_that_some_never_came_to() -> None:
    record = replace(Model("pp1tp2").record(), promises={})
    record = without_calls(record, 0)

    first = judge(replace(entered(record, 1, 0), ended="deadlock")).first_divergence

    assert first is not None
    assert (first.step, first.channel, first.ordinal) == (0, "tp[pp0]", 0)
    assert first.did["0"] == (
        "made no all_reduce #0 of tp[pp0]; has finished, it made no operation at all"
    )


def test_one_rank_that_waits_where_two_have_left_is_the_odd_one() -> None:
    record = replace(Model("pp1tp3").record(), promises={})
    for rank in (0, 1):
        record = without(record, rank, lambda one: isinstance(one, Enter | Exit) and one.step == 4)

    first = judge(replace(entered(record, 2, 4), ended="deadlock")).first_divergence

    assert first is not None
    assert (first.minority, first.ordinal) == ((2,), 4)


def test_a_crash_began_at_the_operation_in_which_the_others_waited_for_the_root() -> None:
    record = stopped_at(Model("pp1tp2").record(), 0, 2)
    record = raised(record, 0, Raised(2, 0, "KeyError", "'w0'", "", ""))

    first = judge(replace(entered(record, 1, 2), ended="broken")).first_divergence

    assert first is not None
    assert (first.step, first.channel, first.ordinal) == (2, "tp[pp0]", 2)
    assert first.minority == (0,)


RAISED_AT = [
    Frame("finish_write_through", "kv.py:40", False),
    Frame("writing_check", "unified_radix_cache.py:120", True),
    Frame("check_hicache_events", "unified_radix_cache.py:90", True),
    Frame("run_rank", "rank.py:69", False),
]


def test_a_crash_names_the_innermost_line_of_the_subjects_code() -> None:
    def crash(frames: list[Frame]) -> RunRecord:
        record = cut(
            Model("pp1tp2").record(), 0, lambda one: isinstance(one, Begin) and one.step == 2
        )
        record = raised(record, 0, Raised(2, 0, "KeyError", "'w0'", "...", "", frames))
        return replace(entered(record, 1, 2), ended="broken")

    verdict = judge(crash(RAISED_AT))

    at = "(writing_check at unified_radix_cache.py:120), step 2"
    assert verdict.summary == f"rank 0 raised KeyError: 'w0' {at}"
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.did["0"] == f"raised KeyError: 'w0' {at}"
    # The testbed's own line is no line of the subject's, and older records say nothing of it.
    for frames in ([RAISED_AT[0], RAISED_AT[3]], []):
        assert judge(crash(frames)).summary == "rank 0 raised KeyError: 'w0', step 2"


@pytest.mark.parametrize(
    ("status", "output", "said"),
    [
        (0, "", "rank 0 ended its process with status 0 without raising, step 2"),
        (82, "bye\n", "rank 0 ended its process with status 82 without raising: bye, step 2"),
    ],
)
def test_a_rank_that_raised_nothing_is_not_said_to_have_raised(
    status: int, output: str, said: str
) -> None:
    record = cut(Model("pp1tp2").record(), 0, lambda one: isinstance(one, Begin) and one.step == 2)
    record = with_rank(record, 0, exit="raised", status=status, output=output)

    verdict = judge(replace(entered(record, 1, 2), ended="broken"))

    assert (verdict.outcome, verdict.summary) == (Outcome.CRASH, said)


def full(record: RunRecord, step: int) -> RunRecord:
    """The record, rank 1's log full after ``step``."""
    record = without(record, 1, lambda one: one.step > step or isinstance(one, Final))
    return with_rank(record, 1, overflow=True, log_bytes=1 << 24)


def test_a_violation_before_a_log_was_full_counts_although_events_are_missing() -> None:
    sound = Model(transfers=[write("w0")]).record()
    spoilt = changed(sound, 2, Complete, 1, lambda one: one._replace(bad_pages=1))
    # Rank 1's log was full in step 3, or in the very step in which rank 2 went wrong.
    sound, wrong, early = full(sound, 3), full(spoilt, 3), full(spoilt, 1)

    assert judge(sound).outcome is judge(early).outcome is Outcome.ERROR
    assert judge(sound).summary.startswith("rank 1 recorded more than 16 MiB, what followed is")
    assert judge(wrong).outcome is Outcome.VIOLATION
    assert judge(wrong).step == 1
    assert judge(wrong).notes[0] == judge(sound).summary


def test_an_injected_fault_on_the_odd_rank_is_named_first() -> None:
    faults = [{"kind": "never-ready"}, {"kind": "empty-queue"}]
    record = Model(transfers=[write("w0", on="leader")], faults=faults).record()
    for rank, step, fault, kind in ((0, 0, 0, "never-ready"), (2, 0, 1, "empty-queue")):
        events = (Fired(step, 0, fault, kind, "w0"), *record.ranks[rank].events)
        record = with_rank(record, rank, events=events)

    notes = [note for note in judge(record).notes if note.startswith("injected")]

    assert notes == [
        "injected: fault 1 (empty-queue) on rank 2, step 0: w0",
        "injected: fault 0 (never-ready) on rank 0, step 0: w0",
    ]


def test_a_fault_that_took_effect_only_later_is_not_named() -> None:
    record = Model(transfers=[write("w0", on="leader")], faults=[{"kind": "never-ready"}]).record()
    late = (*record.ranks[2].events, Fired(4, 0, 0, "never-ready", "w0"))

    assert not any("injected" in note for note in judge(with_rank(record, 2, events=late)).notes)


def test_a_peer_that_does_not_exist_is_named_by_the_deadlock() -> None:
    record = replace(Model("pp2tp1").record(), promises={})
    record = changed(record, 0, Enter, 2, lambda one: one._replace(op="send", peer=99), nth=1)
    record = cut(record, 0, lambda one: isinstance(one, Enter) and one.peer == 99, exit="stopped")
    record = entered(record, 1, 2)

    verdict = judge(replace(record, ended="deadlock"))

    assert verdict.outcome is Outcome.DEADLOCK
    assert "rank 99 does not exist" in verdict.summary
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.minority == (0,)
    assert verdict.first_divergence.did["99"] == "does not exist"


def test_a_hang_names_the_collective_in_flight_that_a_rank_left_out() -> None:
    """Its Work is waited for where the recorder does not see it."""
    record = replace(Model("pp1tp3").record(), promises={})
    began = Enter(1, 0, "all_reduce", "world", 0, -1, -1, "SUM", "float32", 64, [], "loop>step")
    for rank in (0, 1):
        record = inserted(record, rank, 1, began, Exit(1, 0, [], 0, True))
    for rank in range(3):
        record = cut(record, rank, lambda one: isinstance(one, End) and one.step == 1)
        record = with_rank(record, rank, exit="stopped")

    verdict = judge(replace(record, ended="deadline"))

    assert (verdict.outcome, verdict.ranks) == (Outcome.HANG, (2,))
    first = verdict.first_divergence
    assert first is not None
    assert (first.step, first.channel, first.ordinal) == (1, "world", 0)
    assert first.did["2"].startswith("made no all_reduce #0 of world; is not inside a recorded")
    assert "its last operation was all_reduce #1 of tp[pp0]" in first.did["2"]


def test_a_deadlock_began_at_the_receive_left_out_not_at_the_wait_for_its_send() -> None:
    record = replace(Model("pp2tp1").record(), promises={})
    record = without_calls(record, 1)
    record = cut(record, 0, lambda one: isinstance(one, Enter) and one.op == "wait", exit="stopped")

    verdict = judge(replace(record, ended="deadlock"))

    first = verdict.first_divergence
    assert first is not None
    assert (verdict.step, first.where()) == (0, "step 0, pp[tp0] 0->1 tag 77 #0")
    assert first.minority == (1,)
    assert first.did["1"].startswith("made no receive #0 of pp[tp0] 0->1 tag 77")
    assert first.did["0"].startswith("made its isend #0 of pp[tp0] 0->1 tag 77")


def test_a_deadlock_began_where_a_rank_has_gone_on_not_at_who_waits_for_the_waiting() -> None:
    """0 waits for 1, 1 for a message of 2, and 2 has gone on to a collective of all."""
    record = replace(Model("pp3tp1").record(), promises={})
    for rank in range(3):
        record = without(record, rank, lambda one: isinstance(one, Enter | Exit))
        record = stopped_at(record, rank, 0)
    back: tuple[Any, ...] = (7, "", "float32", 8, [], "loop>recv_backward")
    last = (
        Enter(0, 0, "recv", "world", 0, 1, *back),
        Enter(0, 0, "recv", "world", 0, 2, *back),
        Enter(0, 0, "all_reduce", "world", 0, -1, -1, "SUM", "float32", 8, [], "loop>reduce"),
    )
    for rank, event in enumerate(last):
        events = (*record.ranks[rank].events, event)
        record = with_rank(record, rank, events=events)

    first = judge(replace(record, ended="deadlock")).first_divergence

    assert first is not None
    assert (first.channel, first.ordinal) == ("world 2->1 tag 7", 0)
    assert first.did["2"].startswith("made no send #0 of world 2->1 tag 7")
