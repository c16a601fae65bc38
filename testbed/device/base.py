"""What a device is to a rank's cache."""

from collections.abc import Callable
from typing import Protocol

import torch

from testbed.recorder.recorder import HasStep, Recorder
from testbed.scripted_events import Readiness, ScriptedEvent


class Device(Protocol):
    """One rank's device. Pools are int32 tensors of shape (layers, pages, heads, head_dim)."""

    def zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros in the device's own memory."""

    def host_zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros in host memory that the device copies from and to by itself."""

    def event(
        self, clock: HasStep, recorder: Recorder, key: str, readiness: Readiness
    ) -> ScriptedEvent:
        """An event for a transfer that is ready as scripted."""

    def launch(self, start: ScriptedEvent, finish: ScriptedEvent, copy: Callable[[], None]) -> None:
        """Enqueue a transfer: ``start``; ``copy``, no sooner than ``finish`` has it; ``finish``.

        copy: calls ``copy_pages``; at most once, and never for an event that never fires.
        """

    def copy_pages(
        self,
        target: torch.Tensor,
        target_pages: torch.Tensor,
        source: torch.Tensor,
        source_pages: torch.Tensor,
    ) -> None:
        """Copy pages of one pool into as many of another; the indices are int64 on the CPU."""

    def versions(self) -> dict[str, str]:
        """What of the device and its software belongs into a record; empty for the CPU."""
