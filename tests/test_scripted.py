"""Calls that the scenario has the ranks' loop make are named where they may have led there."""

from pathlib import Path

from reports.story import story
from testbed.model.events import Answer, Call, Complete, Enter, Event
from testbed.model.record import RunRecord
from testbed.model.scenario import CallSpec
from testbed.oracles import judge
from testbed.sessions.result import judged
from tests.record_builder import Model, changed, inserted, write

WRITE_BACK = CallSpec("write-back", from_step=2, until_step=3, on={"rank": 1})


def notes(record: RunRecord) -> list[str]:
    return [note for note in judge(record).notes if note.startswith("scripted")]


def called(record: RunRecord, rank: int, call: Call, *did: Event) -> RunRecord:
    return inserted(record, rank, call.step, call, *did, Answer(call.step, 0, call.call, "", ""))


def written_back(*calls: CallSpec) -> RunRecord:
    """Rank 1 alone is called for a write-back in step 2, and completes w0 in it."""
    record = Model(transfers=[write("w0", ready=9)], calls=list(calls)).record()
    done = Complete(2, 0, "write", "w0", True, 0)
    return called(record, 1, Call(2, 0, "write-back", ""), done)


def test_the_call_behind_a_divergence_is_named_with_its_rank_and_step() -> None:
    assert notes(written_back(WRITE_BACK)) == ["scripted: calls[0] (write-back) on rank 1, step 2"]


def test_the_story_names_the_call_and_what_the_odd_rank_did_in_it() -> None:
    text = " ".join(story(judged(written_back(WRITE_BACK), Path("runs/x"))).split())

    assert "; the loop called write-back: completed w0 scripted " in text
    assert "scripted calls[0] (write-back) on rank 1, step 2 replay it" in text


def test_a_call_that_not_every_rank_made_is_named_before_one_that_all_made() -> None:
    record = written_back(CallSpec("flush"), WRITE_BACK)
    for rank in range(4):
        for step in range(5):
            record = called(record, rank, Call(step, 0, "flush", ""))

    assert notes(record) == [
        "scripted: calls[1] (write-back) on rank 1, step 2",
        "scripted: calls[0] (flush) on ranks 0,1,2,3, steps 0 to 2",
    ]


def test_a_call_is_told_with_the_requests_it_was_about() -> None:
    record = written_back(CallSpec("prefetch-check", only=["r0"]), CallSpec("prefetch-check"))
    for key in ("r0", "r1", "r2", "r3", "r4"):
        record = called(record, 1, Call(1, 0, "prefetch-check", key))

    assert notes(record) == [
        "scripted: calls[0] (prefetch-check of r0) on rank 1, step 1",
        "scripted: calls[1] (prefetch-check of r1, r2, r3 and 1 more) on rank 1, step 1",
    ]


def test_a_call_made_only_after_the_divergence_is_not_named() -> None:
    record = written_back(WRITE_BACK, CallSpec("flush", from_step=3))
    record = called(record, 1, Call(3, 0, "flush", ""))

    assert notes(record) == ["scripted: calls[0] (write-back) on rank 1, step 2"]


def test_a_call_in_the_step_of_an_operation_that_differed_before_it_is_not_named() -> None:
    record = Model("pp1tp2", calls=[CallSpec("flush")]).record()
    record = called(record, 1, Call(2, 0, "flush", ""))
    record = changed_operation(record, 1, 2)

    assert judge(record).oracle == "pairing"
    assert notes(record) == []


def changed_operation(record: RunRecord, rank: int, step: int) -> RunRecord:
    """The rank reduces another number of elements in that step."""
    return changed(record, rank, Enter, step, lambda one: one._replace(numel=3))


def test_of_a_run_in_which_nothing_diverged_no_call_is_named() -> None:
    record = Model(calls=[CallSpec("flush")]).record()
    for rank in range(4):
        record = called(record, rank, Call(0, 0, "flush", ""))

    assert judge(record).notes == ()
