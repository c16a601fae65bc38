"""The timeline: logical time, what is on the scene, and where it is drawn."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reports.perfetto import trace
from reports.timeline import lay_out, scene, standalone, to_svg
from reports.timeline.__main__ import main
from reports.timeline.layout import FIT_WIDTH
from reports.timeline.rounds import rounds
from reports.timeline.scene import MAX_BARS, Bar, Scene
from testbed.analysis.view import Op, View
from testbed.model.events import Enter, Fired
from testbed.model.record import RunRecord
from testbed.sessions.result import RunResult, judged
from tests.record_builder import Model, cut, inserted, load, with_rank, without, write
from tests.recorded import DATA, deadlock, modelled

SVG = "{http://www.w3.org/2000/svg}"


def result_of(made: RunRecord) -> RunResult:
    return judged(made, Path("runs/x"))


def scene_of(made: RunRecord) -> Scene:
    return scene(result_of(made))


def bars_of(seen: Scene, rank: int, step: int) -> list[Bar]:
    return [bar for bar in seen.bars if (bar.rank, bar.step) == (rank, step)]


# Logical time


def test_a_collective_is_left_in_the_same_round_by_all_its_members() -> None:
    made = Model("pp2tp2", transfers=[write("w0")]).record()
    left: dict[tuple[str, int], set[int]] = {}
    for items in rounds(View(made)).values():
        for item in items:
            assert isinstance(item.what, Op)
            if item.what.is_collective:
                enter = item.what.enter
                left.setdefault((enter.group, enter.ordinal), set()).add(item.left)
    assert len(left) == 5  # one a step, on the leader stage
    assert {len(found) for found in left.values()} == {1}


def test_a_receive_lasts_from_when_it_was_posted_to_when_the_message_was_sent() -> None:
    made = Model("pp2tp1").record()
    items = rounds(View(made))
    send, recv = items[0][0], items[1][0]
    assert (recv.entered, recv.left) == (0, send.left)
    # Three stages: the last one's receive outlasts the middle one's, by the hop.
    chain = rounds(View(Model("pp3tp1").record()))
    assert chain[2][0].left > chain[1][0].left


def test_ranks_that_hold_each_other_do_not_stop_the_clock() -> None:
    items = rounds(View(deadlock().record))
    assert [each[-1].stuck for each in items.values()] == [True] * 4
    assert all(item.left >= item.entered >= 0 for each in items.values() for item in each)


# The scene


def test_operations_are_bars_and_messages_are_links_from_sender_to_receiver() -> None:
    seen = scene_of(Model("pp2tp1", steps=2).record())
    assert [bar.kind for bar in bars_of(seen, 0, 0)] == ["send"]
    assert [bar.kind for bar in bars_of(seen, 0, 1)] == ["wait", "send"]
    assert [bar.kind for bar in bars_of(seen, 1, 1)] == ["recv"]
    messages = [link for link in seen.links if link.kind == "message"]
    assert [(seen.bars[m.start].rank, seen.bars[m.end].rank) for m in messages] == [(0, 1)] * 2


def test_acks_are_marked_in_the_step_they_become_ready_and_the_step_they_are_completed() -> None:
    slow = {2: 4, 3: 4}
    seen = scene_of(
        Model("pp2tp2", steps=6, transfers=[write("w0", ready=2), load("l0", slow=slow)]).record()
    )
    marked = {(m.kind, m.rank, m.step) for m in seen.marks}
    assert {("ready", 0, 1), ("done", 0, 1), ("ready", 0, 2), ("done", 0, 2)} <= marked
    # The follower is told to complete l0 in step 1, three steps before its own event is ready.
    assert ("done", 2, 1) in marked
    assert ("ready", 2, 4) not in marked
    stalls = [bar for bar in seen.bars if bar.kind == "sync"]
    assert {(bar.rank, bar.step, bar.label) for bar in stalls} == {(2, 1, "l0"), (3, 1, "l0")}
    assert stalls[0].told == "rank 2, step 1: waits for the event of l0, told 3 steps early"


def test_faults_are_marked_and_those_before_the_first_step_have_a_column() -> None:
    made = Model("pp2tp1", steps=2).record()
    made = inserted(made, 1, 1, Fired(1, 0, 0, "slow-events", "w0 two steps later"))
    assert scene_of(made).steps == (0, 1)
    (mark,) = [mark for mark in scene_of(made).marks if mark.kind == "fault"]
    assert (mark.rank, mark.step) == (1, 1)
    assert mark.told == "rank 1, step 1: fault 0 (slow-events): w0 two steps later"
    early = inserted(made, 0, 0, Fired(-1, 0, 0, "no-controller", "no controller"))
    assert scene_of(early).steps == (-1, 0, 1)


def test_the_first_divergence_marks_both_sides_at_the_very_operation() -> None:
    seen = scene(deadlock())
    assert seen.sides == {0: "majority", 1: "majority", 2: "minority", 3: "minority"}
    marked = [bar for bar in seen.bars if bar.side]
    assert [(bar.rank, bar.at, bar.stuck) for bar in marked] == [
        (0, ("world", 0), True),
        (1, ("world", 0), True),
    ]


def test_a_deadlocks_cycle_is_told_from_who_is_stuck_behind_it() -> None:
    waits = scene(deadlock()).waits
    assert {(wait.rank, wait.awaited) for wait in waits if wait.cycle} == {(0, 2), (2, 0)}
    assert {(wait.rank, wait.awaited) for wait in waits if not wait.cycle} == {(1, 2), (3, 1)}


def test_a_cycle_that_ends_at_a_rank_that_left_leads_to_that_rank() -> None:
    made = Model("pp2tp1", steps=2).record()
    made = without(made, 0, lambda event: isinstance(event, Enter))
    made = cut(made, 1, lambda event: isinstance(event, Enter), exit="stopped")
    made = RunRecord(made.scenario, made.ranks, "deadlock", 1.0)
    seen = scene_of(made)
    assert [(wait.rank, wait.awaited, wait.cycle) for wait in seen.waits] == [(1, 0, True)]
    assert (seen.lanes[0].ended, seen.lanes[0].well) == ("done", True)
    assert (seen.lanes[1].ended, seen.lanes[1].well) == ("stopped", False)


def test_a_rank_without_a_record_has_a_lane_all_the_same() -> None:
    made = Model("pp2tp1").record()
    seen = scene_of(RunRecord(made.scenario, made.ranks[:1], "finished", 1.0))
    assert seen.lanes[1].ended == "left no record"
    assert lay_out(seen).height > 0


def test_more_than_makes_a_picture_is_left_out_around_the_divergence() -> None:
    steps = 2000
    made = Model("pp2tp2", steps=steps, transfers=[write("w0", at=1500)]).record()
    made = without(made, 2, lambda event: type(event).__name__ == "Complete")
    result = result_of(made)
    assert result.verdict.step == 1501
    seen = scene(result)
    assert seen.left_out == steps - len(seen.steps)
    assert 1501 in seen.steps
    assert MAX_BARS / 2 < len(seen.bars) <= MAX_BARS


# The drawing


@pytest.mark.parametrize("topology", ["pp2tp2", "pp4tp4", "pp8tp8"])
def test_lanes_are_in_rank_order_grouped_by_stage_and_do_not_overlap(topology: str) -> None:
    seen = scene_of(Model(topology, steps=3, transfers=[write("w0")]).record())
    drawing = lay_out(seen)
    lanes = [text for text in drawing.texts if text.css.split()[0] == "rank"]
    assert [text.text for text in lanes] == [f"rank {rank}" for rank in range(len(seen.lanes))]
    tops = [text.y for text in lanes]
    gaps = [below - above for above, below in pairwise(tops)]
    assert min(gaps) >= 20
    width = seen.topology.tp
    between = {gap for at, gap in enumerate(gaps, 1) if at % width == 0}
    assert min(between) > max(gap for at, gap in enumerate(gaps, 1) if at % width)
    names = [text.text for text in drawing.texts if text.css == "stage-name"]
    assert names == [f"stage {stage}" for stage in range(seen.topology.pp)]


@pytest.mark.parametrize("made", [modelled(steps=8), modelled("pp8tp8", steps=4)])
def test_an_ordinary_run_fits_a_page_and_everything_lies_inside(made: RunRecord) -> None:
    drawing = lay_out(scene_of(made))
    assert drawing.width <= FIT_WIDTH
    for rect in (*drawing.bars, *drawing.ground):
        assert rect.x >= 0
        assert rect.width > 0
        assert rect.x + rect.width <= drawing.width
        assert rect.y + rect.height <= drawing.height


def test_bars_of_one_rank_do_not_overlap() -> None:
    drawing = lay_out(scene_of(Model("pp3tp2", transfers=[write("w0")], storage=True).record()))
    for rank in range(6):
        own = sorted((bar.x, bar.x + bar.width) for bar in drawing.bars if bar.rank == rank)
        assert all(end <= start for (_, end), (start, _) in pairwise(own))


def test_the_svg_is_well_formed_whatever_was_recorded() -> None:
    made = inserted(modelled(steps=2), 0, 1, Fired(1, 0, 0, "odd", "<b>&\"'"))
    root = ElementTree.fromstring(to_svg(scene_of(made), 'a "title" & more'))
    assert root.get("aria-label") == 'a "title" & more'
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert "rank 0, step 1: fault 0 (odd): <b>&\"'" in titles


def test_a_drawing_that_stands_alone_brings_its_style_for_light_and_dark(tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    assert main([str(DATA / "deadlock.json.gz"), str(out)]) == 0
    root = ElementTree.fromstring(out.read_text())
    style = root.find(f"{SVG}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in (style.text or "")
    assert len(root.findall(f".//{SVG}path[@class='cycle p']")) == 2
    assert out.read_text() == standalone(scene(deadlock()), deadlock().scenario.case_id)


def test_a_run_that_is_not_there_is_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere", "out.svg"]) == 2
    assert capsys.readouterr().err.startswith("timeline: nowhere: no recorded run")


@pytest.mark.parametrize("rank", range(4))
def test_a_record_cut_anywhere_can_still_be_drawn_and_traced(rank: int) -> None:
    whole = deadlock().record
    for length in range(len(whole.ranks[rank].events) + 1):
        events = whole.ranks[rank].events[:length]
        made = with_rank(whole, rank, events=events, exit="signal", signal=9)
        seen = scene_of(made)
        assert seen.lanes[rank].ended == "died by SIGKILL"
        ElementTree.fromstring(to_svg(seen, "cut"))
        assert trace(made)["traceEvents"]
