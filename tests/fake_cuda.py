"""A GPU that is none: streams that take their time, events that lie on them, tensors on the CPU.

Stands where ``driver.TorchCuda`` would. Everything on a stream happens when its time has come and
somebody looks, not before: a copy that nobody waited for has not been made. The default stream is
always through with its work.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

COPY_MS = 0.01


@dataclass
class Time:
    """Milliseconds, of the machine's clock."""

    def now(self) -> float:
        """So many."""
        return time.monotonic() * 1e3

    def wait_until(self, due_ms: float) -> None:
        """Sleep till then."""
        time.sleep(max(0.0, due_ms - self.now()) / 1e3)


@dataclass
class ManualTime(Time):
    """Milliseconds that pass only where somebody waits."""

    at: float = 0.0

    def now(self) -> float:
        """So many."""
        return self.at

    def wait_until(self, due_ms: float) -> None:
        """Then it is then."""
        self.at = max(self.at, due_ms)


@dataclass
class Stream:
    """Work in order: when each piece is over, and what it does then."""

    time: Time
    free_at: float = 0.0
    work: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def add(self, takes_ms: float, does: Callable[[], None] = lambda: None) -> float:
        """Enqueue it; when it will be over."""
        self.free_at = max(self.free_at, self.time.now()) + takes_ms
        self.work.append((self.free_at, does))
        return self.free_at

    def catch_up(self) -> None:
        """Do what is due."""
        while self.work and self.work[0][0] <= self.time.now():
            self.work.pop(0)[1]()


class Event:
    """A ``RawEvent`` on a stream."""

    def __init__(self, cuda: "FakeCuda") -> None:
        self._cuda = cuda
        self._stream: Stream | None = None
        self._at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """At the end of the stream."""
        self._stream = stream or self._cuda.current
        self._at = self._stream.add(0.0)

    def query(self) -> bool:
        """Whether its time has come; True if it was never recorded."""
        if self._stream is None:
            return True
        self._stream.catch_up()
        return self._cuda.time.now() >= self._at

    def synchronize(self) -> None:
        """Wait for it."""
        if self._stream is not None:
            self._cuda.time.wait_until(self._at)
            self._stream.catch_up()

    def wait(self, stream: Stream | None = None) -> None:
        """The stream goes on no sooner."""
        stream = stream or self._cuda.current
        stream.free_at = max(stream.free_at, self._at)

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds between them."""
        if not (self.query() and other.query()):
            raise RuntimeError("not ready")
        return other._at - self._at


class FakeCuda:
    """One GPU, a ``Driver``. gpus: how many there are."""

    gpus = 4

    def __init__(self, index: int, time: Time | None = None) -> None:
        self.index = index
        self.device = torch.device("cpu")
        self.time = time or Time()
        self.current = Stream(self.time)
        self.spun_ms: list[float] = []
        self.streams = 0

    @classmethod
    def count(cls) -> int:
        """As many as the test says."""
        return cls.gpus

    def zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros."""
        return torch.zeros(shape, dtype=torch.int32)

    def pinned(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros."""
        return torch.zeros(shape, dtype=torch.int32)

    def event(self) -> Event:
        """A new event."""
        return Event(self)

    def side_stream(self) -> Stream:
        """A stream of its own."""
        self.streams += 1
        return Stream(self.time)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Inside, it is the current one."""
        before, self.current = self.current, stream
        yield
        self.current = before

    def spin(self, duration_ms: float) -> None:
        """The stream is busy for so long."""
        self.spun_ms.append(duration_ms)
        self.current.add(duration_ms)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Made when its time has come, with what the source then holds."""
        assert target.is_contiguous()
        assert source.is_contiguous()

        def made() -> None:
            target.copy_(source)

        self.current.add(COPY_MS, made)

    def versions(self) -> dict[str, str]:
        """Made up."""
        return {"gpu": "no GPU", "cuda": "0.0", "nccl": "0.0"}
