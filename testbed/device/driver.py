"""Every call of ``torch.cuda`` that the testbed makes; a test puts something else in its place."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

_cuda: Any = torch.cuda  # much of it is untyped
_SAMPLE_CYCLES = 1_000_000


class RawEvent(Protocol):
    """What of ``torch.cuda.Event`` is used."""

    def record(self, stream: Any = None) -> None:
        """Put it at the end of the stream, by default of the current one."""

    def query(self) -> bool:
        """Whether the device has come to it; True if it was never recorded."""

    def synchronize(self) -> None:
        """Wait until it has."""

    def wait(self, stream: Any = None) -> None:
        """Hold the stream back until it has."""

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds from this event to the other. Raises RuntimeError unless both are over."""


class Driver(Protocol):
    """One GPU as a rank drives it. All work goes to the current stream."""

    device: torch.device

    def zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 in device memory."""

    def pinned(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros in page-locked host memory."""

    def event(self) -> RawEvent:
        """A new event that takes times."""

    def side_stream(self) -> Any:
        """A stream that begins where the current one now ends."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, ``stream`` is the current one."""

    def spin(self, duration_ms: float) -> None:
        """A kernel that does nothing for about so long."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy between device and pinned memory; the host does not wait."""

    def versions(self) -> dict[str, str]:
        """Name of the GPU, versions of CUDA and NCCL."""


class TorchCuda:
    """The GPU numbered ``index``, which becomes this process's current one; initialises CUDA."""

    @staticmethod
    def count() -> int:
        """GPUs that this process may use."""
        found: int = _cuda.device_count()
        return found

    def __init__(self, index: int) -> None:
        _cuda.init()
        _cuda.set_device(index)
        self.device = torch.device("cuda", index)
        self._warm_up()
        self._cycles_per_ms = _cycles_per_ms()

    def zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 in device memory."""
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def pinned(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros in page-locked host memory."""
        return torch.zeros(shape, dtype=torch.int32, pin_memory=True)

    def event(self) -> RawEvent:
        """A new event that takes times."""
        event: RawEvent = _cuda.Event(enable_timing=True)
        return event

    def side_stream(self) -> Any:
        """A stream of torch's pool that begins where the current one now ends."""
        stream = _cuda.Stream(self.device)
        stream.wait_stream(_cuda.current_stream(self.device))
        return stream

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, ``stream`` is the current one."""
        context: AbstractContextManager[Any] = _cuda.stream(stream)
        return context

    def spin(self, duration_ms: float) -> None:
        """A kernel of one thread that counts clock cycles."""
        _cuda._sleep(int(duration_ms * self._cycles_per_ms))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """One asynchronous memcpy: both tensors are contiguous."""
        target.copy_(source, non_blocking=True)

    def versions(self) -> dict[str, str]:
        """Name of the GPU, versions of CUDA and NCCL."""
        return {
            "gpu": _cuda.get_device_name(self.device),
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, _cuda.nccl.version())),
        }

    def _warm_up(self) -> None:
        """Use once what pools use: CUDA loads a kernel when it is first called, and may wait for
        running ones to do so.
        """
        pool, page = self.zeros((1, 2, 1, 1)), torch.tensor([0])
        pool[:, page] = pool[:, page].cpu().to(self.device)
        pool[:, page] = -1
        self.copy(pool, self.pinned((1, 2, 1, 1)))
        _cuda.synchronize(self.device)


def _cycles_per_ms() -> float:
    """How long the spinning kernel takes, measured once the device is awake."""
    _cuda._sleep(_SAMPLE_CYCLES)
    start, end = (_cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    _cuda._sleep(_SAMPLE_CYCLES)
    end.record()
    end.synchronize()
    took_ms: float = start.elapsed_time(end)
    return _SAMPLE_CYCLES / max(took_ms, 1e-3)
