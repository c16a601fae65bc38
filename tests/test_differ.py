"""The first place where two recorded runs differ."""

from dataclasses import replace
from pathlib import Path

from reports.differ import compared
from testbed.record import RunRecord
from testbed.runs import judged
from testbed.trace.events import Complete, Enter, Exit, Query
from tests.record_builder import Model, changed, cut, with_events, without, write

SOUND = Model("pp2tp2", transfers=[write("w0")]).record()


def told(one: RunRecord, other: RunRecord) -> list[str]:
    """The lines, without those of the two paths."""
    return compared(judged(one, Path("a")), judged(other, Path("b"))).told.split("\n")[3:]


def test_times_and_line_numbers_are_no_difference() -> None:
    other = with_events(
        SOUND, 0, lambda events: [event._replace(t_us=event.t_us + 7) for event in events]
    )
    other = changed(other, 2, Enter, 0, lambda event: event._replace(site="other.py:1"))
    result = compared(judged(SOUND, Path("a")), judged(other, Path("b")))
    assert not result.differ
    assert told(SOUND, other) == [
        "every rank did the same",
        "",
        "verdict of A: ok: every oracle holds",
        "verdict of B: the same",
    ]


def test_the_first_difference_is_told_from_what_it_led_to() -> None:
    # Rank 2 never completes w0 in step 1; what it holds differs from then on.
    other = without(SOUND, 2, lambda event: isinstance(event, Complete))
    lines = told(SOUND, other)
    assert lines[0].startswith("first difference: step 1, rank 2, event ")
    assert lines[1] == "  A: complete: queue write, key w0, ready True, bad_pages 0"
    assert lines[2].startswith("  B: step ends with: ")
    assert "  no difference on ranks 0-1, 3" in lines
    assert lines[-1].startswith("verdict of B: violation by agreement at step 1: ")


def test_of_ranks_that_differ_in_one_step_the_one_whose_operation_came_first_is_told() -> None:
    # The value that rank 0 put in comes before the one that rank 2 received.
    other = changed(SOUND, 2, Exit, 1, lambda event: event._replace(values=[9, 9]))
    other = changed(other, 0, Query, 1, lambda event: event._replace(ready=False))
    lines = told(SOUND, other)
    assert lines[0].startswith("first difference: step 1, rank 0, ")
    assert "  then rank 2, from step 1 on" in lines
    assert "  no difference on ranks 1, 3" in lines


def test_an_operation_is_told_whole() -> None:
    other = changed(SOUND, 1, Enter, 1, lambda event: event._replace(reduce_op="MAX"), nth=1)
    lines = told(SOUND, other)
    assert lines[1] == (
        "  A: all_reduce #1 of tp[pp0], MIN, int32 x 2, put 1,0, got 1,0 (check>agree>reduce)"
    )
    assert lines[2].startswith("  B: all_reduce #1 of tp[pp0], MAX, ")


def test_a_run_that_was_cut_short_has_nothing_more() -> None:
    other = cut(SOUND, 3, lambda event: isinstance(event, Enter), exit="stopped")
    lines = told(SOUND, other)
    assert lines[1] == "  A: recv #0 of pp[tp1] returned [0, 0]"
    assert lines[2] == "  B: nothing more"


def test_what_was_asked_for_differently_comes_first() -> None:
    other = Model("pp2tp1", "fused", steps=4, transfers=[write("w0")]).record()
    lines = told(SOUND, other)
    assert lines[0] == "asked for differently:"
    assert "  subject: A batched, B fused" in lines
    assert "  steps: A 5, B 4" in lines
    assert any(line.startswith("first difference: ") for line in lines)


def test_a_rank_that_the_other_run_lacks_is_a_difference() -> None:
    lines = told(SOUND, replace(SOUND, ranks=SOUND.ranks[:3]))
    assert lines[0] == "first difference: step 0, rank 3, event 0"
    assert lines[2] == "  B: there is no such rank"
