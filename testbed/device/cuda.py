"""A GPU as a device: pools in its memory and in pinned host memory, copies on side streams, real
events.

The model. A transfer gets a side stream of its own, so that a slow one holds up no other. On it lie
a spinning kernel as long as the script says, the copies, and the event. The device so goes its own
way in real time, while scripts count steps: an event scripted in steps is seen ready from its step
on and once the device is through with it, whichever is later, and a rank waits at the start of the
step for the device to be. So a scenario ends alike on every machine. Told to ``synchronize()``
earlier, a rank truly waits for the spinning kernel. In milliseconds only the device counts. An
event that never fires, or of a sick device, has nothing enqueued before it: a kernel that never
ends would keep the GPU from everybody, and a fault that is real would not end with the rank.
"""

from collections.abc import Callable
from typing import Any

import torch

from testbed.device import driver
from testbed.model.errors import EnvironmentFault
from testbed.recorder.recorder import HasStep, Recorder
from testbed.scripted_events import Readiness, ScriptedEvent

SPIN_MS_PER_STEP = 2.0
"""How long a kernel spins for each step of a script; a step without transfers takes less."""

_LONGEST_SPIN_MS = 200.0


class CudaEvent(ScriptedEvent):
    """A real CUDA event: ready once its script allows it and the device has come to it."""

    def __init__(
        self,
        raw: driver.RawEvent,
        clock: HasStep,
        recorder: Recorder,
        key: str,
        readiness: Readiness,
    ) -> None:
        super().__init__(clock, recorder, key, readiness)
        self.raw = raw

    def record(self, stream: Any = None) -> None:
        """Put it at the end of what the stream was given; its readiness counts from now."""
        super().record(stream)
        self.raw.record(stream)

    def wait(self, stream: Any = None) -> None:
        """Whatever the stream is given from now on comes after this event."""
        self.raw.wait(stream)

    def poll(self) -> bool:
        """As ``peek()``; where it is due by its script, first waits until the device is through."""
        if self.readiness.kind == "steps" and self._recorded_step is not None and self._is_due():
            self.raw.synchronize()
        return super().poll()

    def elapsed_time(self, other: "CudaEvent") -> float:
        """Milliseconds of the device's time from this event to ``other``.

        Raises RuntimeError if either was not recorded or is not complete.
        """
        self.check_complete()
        other.check_complete()
        return self.raw.elapsed_time(other.raw)

    def _is_over(self) -> bool:
        return self.raw.query()

    def _await(self) -> None:
        self.raw.synchronize()


class CudaDevice:
    """The GPU that a rank works on.

    place: how many ranks of this machine come before this one; where there are fewer GPUs than
    ranks they share. alone: no two ranks may. Initialises CUDA in this process. Raises
    EnvironmentFault if there is no GPU, or none to have alone.
    """

    def __init__(self, place: int, *, alone: bool = False) -> None:
        gpus = driver.TorchCuda.count()
        if not gpus:
            raise EnvironmentFault("this machine has no GPU that torch can use: run on the CPU")
        if alone and place >= gpus:
            raise EnvironmentFault(
                f"NCCL needs a GPU per rank, this machine has {gpus}:"
                " take fewer ranks, or BACKEND=gloo DEVICE=cuda, where they share"
            )
        self.driver: driver.Driver = driver.TorchCuda(place % gpus)

    @property
    def torch_device(self) -> torch.device:
        """Where tensors of the device's memory are."""
        return self.driver.device

    def zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros in the GPU's memory."""
        return self.driver.zeros(shape)

    def host_zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros in pinned host memory."""
        return self.driver.pinned(shape)

    def event(
        self, clock: HasStep, recorder: Recorder, key: str, readiness: Readiness
    ) -> CudaEvent:
        """A real one."""
        return CudaEvent(self.driver.event(), clock, recorder, key, readiness)

    def launch(self, start: ScriptedEvent, finish: ScriptedEvent, copy: Callable[[], None]) -> None:
        """Everything is enqueued now, behind what the rank has given the GPU so far."""
        stream = self.driver.side_stream()
        with self.driver.on(stream):
            start.record(stream)
            if finish.readiness.kind in ("steps", "ms"):
                spin_ms = _spin_ms(finish.readiness)
                if spin_ms > 0:
                    self.driver.spin(spin_ms)
                copy()
            finish.record(stream)

    def copy_pages(
        self,
        target: torch.Tensor,
        target_pages: torch.Tensor,
        source: torch.Tensor,
        source_pages: torch.Tensor,
    ) -> None:
        """Enqueue a copy per page and layer, each of one piece of memory to one piece."""
        pairs = list(zip(target_pages.tolist(), source_pages.tolist(), strict=True))
        for layer in range(target.shape[0]):
            for into, out_of in pairs:
                self.driver.copy(target[layer, into], source[layer, out_of])

    def versions(self) -> dict[str, str]:
        """The GPU's name, CUDA's and NCCL's version."""
        return self.driver.versions()


def _spin_ms(readiness: Readiness) -> float:
    if readiness.kind == "ms":
        return readiness.after
    return min(readiness.after * SPIN_MS_PER_STEP, _LONGEST_SPIN_MS)
