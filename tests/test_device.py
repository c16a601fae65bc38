"""Devices: one suite that fake and real events pass alike, and what only a GPU does.

The GPU is ``fake_cuda``'s. ``make gpu-check`` sets TESTBED_REAL_GPU and runs this file on a real
one, in a process of its own: CUDA must not be initialised where other tests fork.
"""

import os
from collections.abc import Callable

import pytest
import torch

from testbed.cache import KVCache, TransferController
from testbed.cache.contents import Shard
from testbed.device import CPU, CudaDevice, Device, driver
from testbed.device import cuda as cuda_device
from testbed.model.errors import EnvironmentFault
from testbed.model.events import Complete, Query, Sync, Synced
from testbed.model.scenario import Sizes
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock, Readiness, ScriptedEvent
from tests.fake_cuda import COPY_MS, FakeCuda, ManualTime
from tests.rig import of_kind

REAL_GPU = os.environ.get("TESTBED_REAL_GPU")
SPIN = cuda_device.SPIN_MS_PER_STEP


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The fake GPU that the next CudaDevice will find, its time standing still."""
    fake = FakeCuda(0, ManualTime())

    class Found(FakeCuda):
        def __new__(cls, index: int) -> FakeCuda:  # type: ignore[misc]
            fake.index = index
            return fake

    monkeypatch.setattr(driver, "TorchCuda", Found)
    return fake


@pytest.fixture(params=["fake events", "real events, fake GPU", "real events, real GPU"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "fake events":
        return CPU
    if request.param == "real events, fake GPU":
        request.getfixturevalue("gpu")
    elif not REAL_GPU:
        pytest.skip("runs on a GPU by make gpu-check")
    return CudaDevice(0)


Launch = Callable[[Readiness], ScriptedEvent]


@pytest.fixture
def launch(device: Device, clock: Clock, recorder: ListRecorder) -> Launch:
    """Enqueue a transfer of no bytes; its finish event."""

    def launched(readiness: Readiness) -> ScriptedEvent:
        start = device.event(clock, recorder, "", Readiness.steps(0))
        finish = device.event(clock, recorder, "w0", readiness)
        device.launch(start, finish, lambda: None)
        return finish

    return launched


# One suite for fake and real events


def test_it_is_ready_from_its_step_on(launch: Launch, clock: Clock, recorder: ListRecorder) -> None:
    event = launch(Readiness.steps(2))
    answers = []
    for _ in range(4):
        event.poll()  # what the controller does at the start of a step
        answers.append(event.query())
        clock.tick()

    assert answers == [False, False, True, True]
    assert [query.ready for query in of_kind(recorder.events, Query)] == answers


def test_synchronize_before_its_step_records_the_stall_and_completes(
    launch: Launch, recorder: ListRecorder
) -> None:
    event = launch(Readiness.steps(3))
    event.synchronize()

    assert recorder.events == [Sync(0, 0, "w0", 3), Synced(0, 0, "w0")]
    assert event.observed


def test_synchronize_of_a_ready_event_records_no_stall(
    launch: Launch, recorder: ListRecorder
) -> None:
    event = launch(Readiness.steps(0))
    event.poll()
    event.synchronize()

    assert recorder.events[0] == Sync(0, 0, "w0", 0)


def test_milliseconds_truly_block_and_are_no_stall_of_steps(
    launch: Launch, recorder: ListRecorder
) -> None:
    event = launch(Readiness.ms(30))
    assert not event.peek()
    event.synchronize()

    assert event.peek()
    assert recorder.events[0] == Sync(0, 0, "w0", -1)


def test_one_that_never_fires_is_not_ready_in_any_step(launch: Launch, clock: Clock) -> None:
    event = launch(Readiness.never())
    clock.step = 1000

    assert not event.poll()
    assert not event.observed


def test_a_sick_device_raises_from_query_and_from_synchronize(launch: Launch) -> None:
    event = launch(Readiness.error("out of luck"))

    for ask in (event.query, event.synchronize):
        with pytest.raises(RuntimeError, match="CUDA error: out of luck"):
            ask()
    assert not event.observed


def test_one_never_recorded_is_ready(device: Device, clock: Clock, recorder: ListRecorder) -> None:
    assert device.event(clock, recorder, "w0", Readiness.steps(3)).query()


def test_scripts_tell_the_absolute_step(launch: Launch, clock: Clock) -> None:
    clock.tick()
    kinds = (Readiness.steps(3), Readiness.ms(2.5), Readiness.never(), Readiness.error("x"))

    assert [launch(kind).script for kind in kinds] == ["steps:4", "ms:2.5", "never", "error"]


def test_elapsed_time_needs_both_events_complete(
    device: Device, clock: Clock, recorder: ListRecorder
) -> None:
    start = device.event(clock, recorder, "", Readiness.steps(0))
    finish = device.event(clock, recorder, "w0", Readiness.steps(2))
    device.launch(start, finish, lambda: None)
    with pytest.raises(RuntimeError, match="both events complete"):
        start.elapsed_time(finish)
    clock.step = 2
    start.poll()
    finish.poll()

    assert start.elapsed_time(finish) > 0


class Rank:
    """Cache and controller of one rank on a device."""

    def __init__(self, device: Device) -> None:
        self.clock = Clock()
        self.clock.tick()
        self.recorder = ListRecorder(self.clock)
        sizes = Sizes(layers=2, heads=2, device_pages=8, host_pages=8)
        self.cache = KVCache(sizes, Shard((0, 1), (0, 1)), self.recorder, device)
        self.controller = TransferController(self.cache, self.clock, self.recorder)

    def write(self, after: int) -> int:
        inserted = self.cache.insert((11, 12, 13))
        assert inserted is not None
        assert self.controller.write(inserted.leaf, "w0", Readiness.steps(after))
        return inserted.leaf.id

    def load(self, after: int) -> int:
        node = self.cache.plant_on_host((21, 22))
        assert self.controller.load(node, "l0", Readiness.steps(after))
        return node.id

    def completed(self) -> list[tuple[bool, int]]:
        done = of_kind(self.recorder.events, Complete)
        return [(event.ready, event.bad_pages) for event in done]


def test_bytes_come_through_in_both_directions(device: Device) -> None:
    rank = Rank(device)
    written, loaded = rank.write(after=1), rank.load(after=1)
    rank.clock.tick()
    rank.controller.progress()
    rank.cache.finish_write_through([written], written)
    rank.cache.finish_load_back(loaded)

    assert rank.completed() == [(True, 0), (True, 0)]


def test_what_is_completed_without_a_wait_has_no_bytes_yet(device: Device) -> None:
    rank = Rank(device)
    written, loaded = rank.write(after=3), rank.load(after=3)
    rank.cache.finish_write_through([written], written)
    rank.cache.finish_load_back(loaded)

    assert rank.completed() == [(False, 3), (False, 2)]


def test_what_is_waited_for_early_has_its_bytes(device: Device) -> None:
    rank = Rank(device)
    written = rank.write(after=3)
    rank.controller.ack_write_queue[0].finish_event.synchronize()
    rank.cache.finish_write_through([written], written)

    assert rank.completed() == [(True, 0)]


def test_bytes_that_never_come_are_missed(device: Device) -> None:
    rank = Rank(device)
    inserted = rank.cache.insert((11,))
    assert inserted is not None
    rank.controller.write(inserted.leaf, "w0", Readiness.never())
    rank.cache.finish_write_through([inserted.leaf.id], inserted.leaf.id)

    assert rank.completed() == [(False, 1)]


# What only a GPU does


def test_skew_is_a_kernel_that_spins_on_the_side_stream(gpu: FakeCuda) -> None:
    rank = Rank(CudaDevice(0))
    rank.controller.reshapes.append(lambda queue, key, readiness: readiness.delayed(3))
    rank.write(after=1)

    assert gpu.spun_ms == [4 * SPIN]


def test_waiting_early_truly_waits_for_the_spinning_kernel(gpu: FakeCuda) -> None:
    rank = Rank(CudaDevice(0))
    rank.write(after=3)
    rank.controller.ack_write_queue[0].finish_event.synchronize()

    layers, pages = 2, 3
    assert gpu.time.now() == pytest.approx(3 * SPIN + layers * pages * COPY_MS)


def test_a_rank_waits_at_the_start_of_the_step_until_the_device_is_through(gpu: FakeCuda) -> None:
    rank = Rank(CudaDevice(0))
    rank.write(after=1)
    event = rank.controller.ack_write_queue[0].finish_event
    rank.clock.tick()
    assert not event.peek()  # due by its script, but the device is at it

    rank.controller.progress()

    assert event.peek()
    assert gpu.time.now() >= SPIN


def test_a_device_that_is_through_early_is_not_seen_ready_before_the_step(gpu: FakeCuda) -> None:
    rank = Rank(CudaDevice(0))
    rank.write(after=2)
    event = rank.controller.ack_write_queue[0].finish_event
    gpu.time.wait_until(1000.0)

    assert not event.query()
    rank.clock.step = 2
    assert event.query()


def test_a_slow_transfer_holds_up_no_other(gpu: FakeCuda) -> None:
    rank = Rank(CudaDevice(0))
    rank.write(after=50)
    rank.load(after=1)
    rank.clock.tick()
    rank.controller.progress()

    assert gpu.streams == 2
    assert gpu.time.now() < 2 * SPIN


def test_nothing_spins_for_an_event_that_never_fires(gpu: FakeCuda) -> None:
    rank = Rank(CudaDevice(0))
    inserted = rank.cache.insert((11,))
    assert inserted is not None
    rank.controller.write(inserted.leaf, "w0", Readiness.never())
    gpu.time.wait_until(1e9)
    rank.controller.progress()

    assert gpu.spun_ms == []
    assert torch.equal(rank.cache.host.data, torch.zeros_like(rank.cache.host.data))


def test_however_long_a_script_is_the_kernel_ends(gpu: FakeCuda) -> None:
    Rank(CudaDevice(0)).write(after=100_000)

    assert gpu.spun_ms == [cuda_device._LONGEST_SPIN_MS]


def test_ranks_share_gpus_where_there_are_fewer(gpu: FakeCuda) -> None:
    CudaDevice(5)

    assert gpu.index == 5 - FakeCuda.gpus


@pytest.mark.usefixtures("gpu")
def test_with_nccl_a_rank_too_many_is_told_in_one_line() -> None:
    with pytest.raises(EnvironmentFault, match="NCCL needs a GPU per rank, this machine has 4: "):
        CudaDevice(4, alone=True)


@pytest.mark.usefixtures("gpu")
def test_a_rank_without_any_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeCuda, "gpus", 0)

    with pytest.raises(EnvironmentFault, match="this machine has no GPU that torch can use"):
        CudaDevice(0)
