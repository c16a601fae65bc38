"""pairing: operations that do not match, and those that merely have no partner."""

from dataclasses import replace
from typing import Any

import pytest

from testbed.analysis.view import View
from testbed.model.events import MODEL, Enter, Event, Exit, Touched
from testbed.model.record import EndedHow, RunRecord
from testbed.model.verdict import Finding
from testbed.oracles import pairing
from tests.record_builder import Model, changed, cut, inserted, with_events, without, write


def found(record: RunRecord) -> list[Finding]:
    return list(pairing.check(View(record)))


def is_op(event: Event, op: str, step: int) -> bool:
    return isinstance(event, Enter) and (event.op, event.step) == (op, step)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"reduce_op": "MAX"}, "all_reduce MAX of int32[2]"),
        ({"numel": 3}, "all_reduce MIN of int32[3]"),
        ({"dtype": "int64"}, "all_reduce MIN of int64[2]"),
        ({"op": "broadcast", "reduce_op": ""}, "broadcast of int32[2]"),
        ({"caller": "check>other"}, "by other"),
        ({"peer": 1}, "of root 1"),
        ({"shape": (2, 1)}, "all_reduce MIN of int32[2,1]"),
    ],
)
def test_a_collective_that_differs_on_one_member_is_told(change: dict[str, Any], told: str) -> None:
    record = changed(Model("pp1tp4").record(), 3, Enter, 2, lambda one: one._replace(**change))

    (finding,) = found(record)

    assert (finding.step, finding.ranks) == (2, (3,))
    assert finding.divergence is not None
    assert (finding.divergence.channel, finding.divergence.ordinal) == ("tp[pp0]", 2)
    assert finding.divergence.majority == (0, 1, 2)
    assert told in finding.divergence.did["3"]


def test_a_rank_that_skips_one_all_reduce_of_a_series_is_told_by_the_step() -> None:
    def shift(events: list[Event]) -> list[Event]:
        kept = []
        for event in events:
            if isinstance(event, Enter | Exit) and event.step == 1:
                continue
            if isinstance(event, Enter) and event.step > 1:
                event = event._replace(ordinal=event.ordinal - 1)
            kept.append(event)
        return kept

    (finding,) = found(with_events(Model("pp1tp2").record(), 1, shift))

    assert (finding.step, finding.ranks) == (1, (1,))
    assert finding.summary.endswith("by reduce in step 1")


def test_a_message_of_another_length_is_told_even_if_the_receiver_died_of_it() -> None:
    record = Model("pp2tp1").record()
    record = changed(record, 1, Enter, 3, lambda one: one._replace(numel=1))
    record = cut(record, 1, lambda one: is_op(one, "recv", 3), exit="signal", signal=6)

    (finding,) = found(record)

    assert finding.summary == (
        "pp[tp0] 0->1 tag 77: rank 1: received it as int32[1]; rank 0: sent int32[2]"
    )


def test_a_message_received_by_another_function_than_sent_it_is_told() -> None:
    record = Model("pp2tp1", "separate").record()
    loading = "check>loading_check>agree>pass_down"

    (finding,) = found(changed(record, 1, Enter, 1, lambda one: one._replace(caller=loading)))

    assert finding.divergence is not None
    assert finding.divergence.did == {
        "0": "sent by writing_check",
        "1": "received by loading_check",
    }


def test_a_buffer_that_was_changed_before_its_send_was_over_is_told() -> None:
    record = Model("pp2tp1", transfers=[write("w0")]).record()

    (finding,) = found(changed(record, 1, Exit, 1, lambda one: one._replace(values=[9, 0])))

    assert "sent [1, 0]" in finding.summary
    assert "received [9, 0]" in finding.summary


def test_what_only_some_ranks_came_to_enter_is_no_mismatch() -> None:
    record = Model("pp1tp2").record()

    assert found(cut(record, 1, lambda one: is_op(one, "all_reduce", 2), exit="stopped")) == []


def test_a_receive_that_was_posted_for_no_message_is_no_mismatch() -> None:
    record = Model("pp2tp1").record()
    nothing = without(record, 0, lambda one: isinstance(one, Enter) and one.op == "isend")

    assert found(nothing) == []


def test_two_tags_of_one_pipe_are_apart() -> None:
    record = Model("pp2tp1").record()
    other: tuple[Any, ...] = (1, 5, "", "int64", 7, [], "other")
    record = inserted(record, 0, 2, Enter(2, 0, "isend", "pp[tp0]", 0, *other), Exit(2, 0, []))

    assert found(record) == []


def test_a_message_received_in_another_step_than_it_was_sent_in_is_told() -> None:
    """The stream is shifted by one: every value is plausible, and all are a round too old."""

    def skip_first(events: list[Event]) -> list[Event]:
        kept = []
        for event in events:
            if isinstance(event, Enter) and event.op == "recv":
                if event.step == 0:
                    continue
                event = event._replace(ordinal=event.ordinal - 1)
            kept.append(event)
        return kept

    (finding,) = found(with_events(Model("pp2tp1").record(), 1, skip_first))

    assert (finding.step, finding.divergence and finding.divergence.ordinal) == (0, 0)
    assert finding.summary == (
        "pp[tp0] 0->1 tag 77: rank 1: received in step 1; rank 0: sent in step 0"
    )


def test_the_models_traffic_may_be_received_in_a_later_step() -> None:
    record = Model("pp2tp1").record()
    rest: tuple[Any, ...] = (0, "", "float32", 64, [], MODEL)
    record = inserted(record, 0, 1, Enter(1, 0, "isend", "pp[tp0]", 0, 1, *rest), Exit(1, 0, []))
    record = inserted(record, 1, 2, Enter(2, 0, "recv", "pp[tp0]", 0, 0, *rest), Exit(2, 0, []))

    assert found(record) == []


def new_group(ordinal: int, ranks: list[int]) -> tuple[Event, Event]:
    what = ("world", ordinal, -1, -1, "", "", len(ranks), ranks, "setup")
    return Enter(1, 0, "new_group", *what), Exit(1, 0, ranks)


def test_ranks_that_make_a_group_of_other_members_are_told() -> None:
    record = Model("pp1tp3").record()
    for rank in range(3):
        record = inserted(record, rank, 1, *new_group(0, [0, 1] if rank == 2 else [0, 2]))

    (finding,) = found(record)

    assert finding.ranks == (2,)
    assert "new_group of ranks 0,1" in finding.summary


@pytest.mark.parametrize("op", ["wait_all_reduce", "wait_irecv"])
def test_the_wait_for_an_asynchronous_operation_is_no_operation_of_its_group(op: str) -> None:
    record = Model("pp1tp2").record()
    at = (-1, -1) if op == "wait_all_reduce" else (1, 5)
    wait = Enter(2, 0, op, "tp[pp0]", 2, *at, "MIN", "int32", 2, [], "check")

    assert found(inserted(record, 0, 2, wait, Exit(2, 0, []))) == []


def touch(rank: int, step: int, how: str, op: str) -> Touched:
    return Touched(step, 0, how, op, "pp[tp0]", step, 1 - rank, 77, "check>pass_down", "own.py:7")


def test_a_buffer_used_before_the_wait_is_told_with_who_did_it() -> None:
    record = Model("pp2tp1").record()
    record = inserted(record, 1, 3, touch(1, 3, "read", "recv"))

    (finding,) = found(record)

    assert (finding.step, finding.ranks) == (3, (1,))
    assert finding.summary == (
        "pp[tp0] 0->1 tag 77: rank 1: read the buffer of its recv before wait() "
        "(check>pass_down at own.py:7)"
    )


def test_all_ranks_that_used_the_buffer_of_one_collective_are_named_together() -> None:
    record = Model("pp1tp2").record()
    for rank in (0, 1):
        early = Touched(2, 0, "read", "all_reduce", "tp[pp0]", 2, -1, -1, "check>mine", "own.py:7")
        record = inserted(record, rank, 2, early)

    (finding,) = found(record)

    assert finding.ranks == (0, 1)
    assert finding.summary == (
        "tp[pp0]: ranks 0,1: read the buffer of its all_reduce before wait()"
        " (check>mine at own.py:7)"
    )
    assert finding.divergence is not None
    assert finding.divergence.ordinal == 2


def test_a_sender_that_changed_its_buffer_is_the_odd_one_not_the_receiver() -> None:
    record = Model("pp2tp1", transfers=[write("w0")]).record()
    record = changed(record, 1, Exit, 1, lambda one: one._replace(values=[9, 0]))
    record = inserted(record, 0, 1, touch(0, 1, "written", "isend"))

    first = found(record)[0]

    assert first.ranks == (0,)
    assert "sent [1, 0], then wrote into the buffer of its isend" in first.summary
    assert "received [9, 0]" in first.summary


def test_of_two_mismatches_in_one_step_the_one_that_came_first_is_told_first() -> None:
    record = Model("pp2tp2").record()
    # The reduction of stage 0 lies before the messages that carry its result.
    record = changed(record, 3, Enter, 2, lambda one: one._replace(numel=9))
    record = changed(record, 1, Enter, 2, lambda one: one._replace(reduce_op="MAX"), nth=1)

    channels = [one.divergence.channel for one in found(record) if one.divergence]

    assert channels == ["tp[pp0]", "pp[tp1] 1->3 tag 77"]


def over_nccl(record: RunRecord) -> RunRecord:
    """The same run with every pipeline over NCCL, so that its messages know no tags."""

    def renamed(events: list[Event]) -> list[Event]:
        return [
            event._replace(group=f"{event.group}@nccl") if isinstance(event, Enter) else event
            for event in events
        ]

    for rank in range(record.scenario.topology.size):
        record = with_events(record, rank, renamed)
    return record


def retagged(record: RunRecord, rank: int, op: str, step: int, tag: int) -> RunRecord:
    def change(events: list[Event]) -> list[Event]:
        return [
            event._replace(tag=tag)
            if isinstance(event, Enter) and (event.op, event.step) == (op, step)
            else event
            for event in events
        ]

    return with_events(record, rank, change)


def test_a_sound_run_over_nccl_is_left_alone() -> None:
    assert not found(over_nccl(Model("pp2tp2").record()))


def test_over_nccl_a_message_received_under_another_tag_is_told() -> None:
    (finding,) = found(over_nccl(retagged(Model("pp2tp1").record(), 1, "recv", 2, 5)))

    # Nothing says which end is wrong: both are named.
    assert (finding.step, finding.ranks) == (2, (1, 0))
    assert finding.summary == (
        "pp[tp0]@nccl 0->1: rank 1: received under tag 5: NCCL knows no tags, only the order;"
        " rank 0: sent under tag 77"
    )


def test_over_gloo_a_receive_under_another_tag_is_another_channel() -> None:
    assert not found(retagged(Model("pp2tp1").record(), 1, "recv", 2, 5))


def test_over_nccl_messages_under_two_tags_pair_in_the_order_of_issue() -> None:
    """The agreement is received where the activations were sent: two tags would have kept them
    apart."""
    record = over_nccl(retagged(Model("pp2tp1").record(), 0, "isend", 1, 0))

    def as_model(events: list[Event]) -> list[Event]:
        return [
            event._replace(caller=MODEL)
            if isinstance(event, Enter) and is_op(event, "isend", 1)
            else event
            for event in events
        ]

    (finding,) = found(with_events(record, 0, as_model))

    assert finding.step == 1
    assert "rank 0: sent by model under tag 0" in finding.summary
    assert "received by check>agree>pass_down under tag 77" in finding.summary


def _without_the_receive_of_step_2(events: list[Event]) -> list[Event]:
    """Every later receive takes the message before the one that was meant."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Enter) and event.op == "recv":
            if event.step == 2:
                continue
            event = event._replace(ordinal=event.ordinal - (event.step > 2))
        kept.append(event)
    return kept


@pytest.mark.parametrize("ended", ["deadlock", "finished"])
def test_a_receive_left_out_before_a_deadlock_is_told_in_its_own_step(ended: EndedHow) -> None:
    record = with_events(Model("pp2tp1").record(), 1, _without_the_receive_of_step_2)
    record = replace(record, promises={}, ended=ended)

    findings = found(record)

    if ended == "finished":  # then it is for conservation: a message was never received
        assert findings == []
        return
    (finding,) = findings
    assert (finding.step, finding.ranks) == (2, (1,))
    assert "rank 1: received in step 3" in finding.summary
    assert "rank 0: sent in step 2" in finding.summary
