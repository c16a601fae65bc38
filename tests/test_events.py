"""The rank's clock and its scripted events."""

import multiprocessing
from typing import Any

import pytest

from testbed.model.errors import BadInput
from testbed.model.events import Query, Sync, Synced
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock, FakeEvent, Readiness


def recorded(clock: Clock, recorder: ListRecorder, readiness: Readiness) -> FakeEvent:
    event = FakeEvent(clock, recorder, "w0", readiness)
    event.record()
    return event


def test_an_event_in_steps_is_ready_from_its_step_on(clock: Clock, recorder: ListRecorder) -> None:
    event = recorded(clock, recorder, Readiness.steps(2))
    answers = []
    for _ in range(4):
        answers.append(event.query())
        clock.tick()
    assert answers == [False, False, True, True]
    assert recorder.events[2] == Query(2, 0, "w0", True)


def test_synchronize_before_its_step_records_the_stall_and_completes(
    clock: Clock, recorder: ListRecorder
) -> None:
    event = recorded(clock, recorder, Readiness.steps(3))
    event.synchronize()
    assert recorder.events == [Sync(0, 0, "w0", 3), Synced(0, 0, "w0")]
    assert event.observed


def test_synchronize_of_a_ready_event_records_no_stall(
    clock: Clock, recorder: ListRecorder
) -> None:
    recorded(clock, recorder, Readiness.steps(0)).synchronize()
    assert recorder.events[0] == Sync(0, 0, "w0", 0)


def test_peeking_is_silent_and_moves_nothing(clock: Clock, recorder: ListRecorder) -> None:
    event = recorded(clock, recorder, Readiness.steps(0))
    moved: list[str] = []
    event.on_complete = lambda: moved.append("bytes")
    assert event.peek()
    assert (recorder.events, moved) == ([], [])


def test_bytes_move_once_however_often_an_event_is_seen_ready(
    clock: Clock, recorder: ListRecorder
) -> None:
    event = recorded(clock, recorder, Readiness.steps(1))
    moved: list[int] = []
    event.on_complete = lambda: moved.append(clock.step)
    event.query()
    clock.tick()
    event.query()
    event.synchronize()
    event.poll()
    assert moved == [1]


def test_milliseconds_truly_block(clock: Clock, recorder: ListRecorder) -> None:
    event = recorded(clock, recorder, Readiness.ms(30))
    assert not event.peek()
    event.synchronize()
    assert event.peek()
    assert recorder.events[0] == Sync(0, 0, "w0", -1)


def test_a_sick_device_raises_from_query_and_from_synchronize(
    clock: Clock, recorder: ListRecorder
) -> None:
    event = recorded(clock, recorder, Readiness.error("out of luck"))
    with pytest.raises(RuntimeError, match="CUDA error: out of luck"):
        event.query()
    with pytest.raises(RuntimeError, match="CUDA error: out of luck"):
        event.synchronize()
    assert not event.observed


def test_an_event_never_recorded_is_ready(clock: Clock, recorder: ListRecorder) -> None:
    assert FakeEvent(clock, recorder, "w0", Readiness.never()).query()


def wait_for_never(link: Any) -> None:
    clock = Clock()
    event = recorded(clock, ListRecorder(clock), Readiness.never())
    link.send(event.peek())
    event.synchronize()
    link.send("returned")


def test_waiting_for_an_event_that_never_fires_hangs() -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=wait_for_never, args=(theirs,), daemon=True
    )
    process.start()
    assert ours.recv() is False
    assert not ours.poll(0.2)
    process.kill()
    process.join()


def test_elapsed_time_needs_both_events_complete(clock: Clock, recorder: ListRecorder) -> None:
    start = recorded(clock, recorder, Readiness.steps(0))
    finish = recorded(clock, recorder, Readiness.steps(2))
    with pytest.raises(RuntimeError, match="both events complete"):
        start.elapsed_time(finish)
    clock.tick()
    clock.tick()
    assert start.elapsed_time(finish) == 2.0


def test_scripts_tell_the_absolute_step(clock: Clock, recorder: ListRecorder) -> None:
    clock.tick()
    kinds = (Readiness.steps(3), Readiness.ms(2.5), Readiness.never(), Readiness.error("x"))
    scripts = [recorded(clock, recorder, readiness).script for readiness in kinds]
    assert scripts == ["steps:4", "ms:2.5", "never", "error"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (3, Readiness.steps(3)),
        (None, Readiness.never()),
        ({"ms": 5}, Readiness.ms(5)),
        ({"error": "sick"}, Readiness.error("sick")),
    ],
)
def test_readiness_reads_as_scenarios_write_it(written: Any, meant: Readiness) -> None:
    assert Readiness.parse(written, "here") == meant


@pytest.mark.parametrize("written", [-1, True, 1.5, "soon", {"ms": -1}, {"s": 1}, {"error": ""}])
def test_a_readiness_that_means_nothing_is_refused_by_name(written: Any) -> None:
    with pytest.raises(BadInput, match=r"workload\.writes\[0\]\.ready_after"):
        Readiness.parse(written, "workload.writes[0].ready_after")


def test_delay_shifts_steps_only_and_not_below_zero() -> None:
    assert Readiness.steps(2).delayed(3) == Readiness.steps(5)
    assert Readiness.steps(2).delayed(-3) == Readiness.steps(0)
    assert Readiness.never().delayed(3) == Readiness.never()
