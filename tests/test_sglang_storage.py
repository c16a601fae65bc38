"""The storage threads of a release, lifted: what they hand to the scheduler, and in which step."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.model.events import Arrived, Measured, Take
from testbed.model.topology import Topology
from testbed.scripted_events import Readiness
from testbed.subjects.sglang import releases
from tests.rig import Rig, at_hand, of_kind, operations, run_ranks

RELEASE = "sglang==0.5.23"
TWO_STAGES = Topology(pp=2)
REDUCES = "                self._reduce_prefetch_ack(ack)\n"


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str], str]:
    """A checkout of the release whose second storage thread does something else than reduce."""

    def change(instead: str) -> str:
        at_hand(RELEASE)
        package = tmp_path / "sglang"
        shutil.copytree(releases.opened("0.5.23").folder / "srt", package / "srt")
        (package / "__init__.py").touch()
        file = package / "srt/managers/cache_controller.py"
        text = file.read_text()
        assert REDUCES in text
        file.write_text(text.replace(REDUCES, f"                {instead}\n"))
        return f"sglang@{tmp_path}"

    return change


def ask(rig: Rig, request: str, page_after: int = 1) -> None:
    first = 10 * int(request[1:]) + 20
    anchor, blocks = rig.cache.plant_on_host([first]), (first + 1, first + 2)
    operation = rig.controller.begin_prefetch(
        anchor, request, blocks, found=2, page_after=Readiness.steps(page_after)
    )
    assert operation is not None
    rig.subject.track_prefetch(operation)
    rig.controller.answer_prefetch(operation)


def acks(rig: Rig) -> list[tuple[int, str]]:
    takes = of_kind(rig.recorder.events, Take)
    return [(take.step, take.key) for take in takes if take.queue == "prefetch-ack"]


@pytest.mark.parametrize("name", ["batched", "sglang==0.5.18", "sglang==0.5.19", RELEASE])
def test_storage_reads_one_prefetch_after_the_other(name: str) -> None:
    rig = Rig(at_hand(name), storage=True)
    ask(rig, "f0")
    ask(rig, "f1")
    rig.step(6)

    arrived = [(event.step, event.key) for event in of_kind(rig.recorder.events, Arrived)]
    assert arrived == [(3, "f0"), (5, "f1")]


def test_every_page_and_every_end_has_an_ack_in_the_step_in_which_it_comes() -> None:
    rig = Rig(at_hand(RELEASE), storage=True)
    ask(rig, "f0")
    ask(rig, "f1", page_after=2)
    rig.step(9)

    assert acks(rig) == [
        *((step, "f0") for step in (2, 3, 3)),
        *((step, "f1") for step in (5, 7, 7)),
    ]


def slower_below(rig: Rig) -> None:
    ask(rig, "f0", page_after=1 + rig.groups.at.pp)
    rig.step(7)


@pytest.mark.parametrize("name", ["sglang==0.5.19", RELEASE])
def test_an_ack_is_handed_over_when_the_last_rank_has_its_page(name: str, tmp_path: Path) -> None:
    ranks = run_ranks(TWO_STAGES, name, slower_below, tmp_path, storage=True)

    for events in ranks:
        taken = [take.step for take in of_kind(events, Take) if take.queue == "prefetch-ack"]
        assert taken == [3, 5, 5]


def test_acks_are_reduced_on_a_thread_over_a_group_of_their_own(tmp_path: Path) -> None:
    (events, _) = run_ranks(TWO_STAGES, RELEASE, slower_below, tmp_path, storage=True)

    reduced = [op for op in operations(events, "all_reduce") if op.thread]
    assert [op.caller.split(">")[0] for op in reduced] == ["prefetch_sync_thread_func"] * 2
    assert not {op.group for op in reduced} & {group.name for group in TWO_STAGES.groups}


def one_fetches_alone(rig: Rig) -> None:
    if rig.groups.at.pp == 0:
        ask(rig, "f0")
        operation = rig.controller.prefetch_hit_queue.get()
        operation.host_indices = rig.controller.mem_pool_host.alloc(operation.storage_hit_count)
        rig.controller.prefetch_buffer.put(operation)
    for _ in range(6):
        rig.controller.progress()
        rig.clock.tick()
    unfinished = [operation.request_id for operation in rig.controller.fetch.unfinished()]
    queued = rig.controller.ack_prefetch_queue.qsize()
    rig.recorder.add(Measured, "left", {"unfinished": unfinished, "queued": queued})


def test_a_rank_that_never_fetches_holds_up_the_storage_threads_of_its_peers_alone(
    tmp_path: Path,
) -> None:
    ranks = run_ranks(TWO_STAGES, RELEASE, one_fetches_alone, tmp_path, storage=True)

    left = [of_kind(events, Measured)[0].figures for events in ranks]
    assert left[0] == {"unfinished": ["f0"] * 3, "queued": 0}
    assert left[1] == {"unfinished": [], "queued": 0}


def one_stops_short(rig: Rig) -> None:
    """Storage has nothing for the second stage; what it tells the scheduler of that."""
    ask(rig, "f0")
    operation = rig.controller.prefetch_hit_queue.get()
    operation.host_indices = rig.controller.mem_pool_host.alloc(operation.storage_hit_count)
    rig.controller.prefetch_buffer.put(operation)
    if rig.groups.at.pp:
        operation.mark_terminate()
    told = [rig.controller.ack_prefetch_queue.get().completed_tokens for _ in range(3)]
    rig.recorder.add(Measured, "told", {"tokens": told})


def told(subject: str, folder: Path) -> list[list[int | None]]:
    ranks = run_ranks(TWO_STAGES, subject, one_stops_short, folder, storage=True)
    return [of_kind(events, Measured)[0].figures["tokens"] for events in ranks]


def test_all_ranks_are_told_what_the_one_that_stopped_short_has(tmp_path: Path) -> None:
    assert told(RELEASE, tmp_path) == [[0, 0, None]] * 2


def test_without_its_reduction_each_rank_is_told_what_it_has_itself(
    tmp_path: Path, changed: Callable[[str], str]
) -> None:
    store = tmp_path / "store"
    store.mkdir()

    assert told(changed("pass"), store) == [[16, 32, None], [0, 0, None]]


def test_what_a_storage_thread_raises_ends_the_rank(changed: Callable[[str], str]) -> None:
    rig = Rig(at_hand(changed("raise ValueError('told so')")), storage=True)
    ask(rig, "f0")

    with pytest.raises(ValueError, match="told so"):
        rig.step(4)
