"""The CPU as a device: fake events, and bytes that move when an event is first seen ready."""

from collections.abc import Callable

import torch

from testbed.recorder.recorder import HasStep, Recorder
from testbed.scripted_events import FakeEvent, Readiness, ScriptedEvent


class CpuDevice:
    """Both pools are plain memory; nothing goes on by itself."""

    def zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros."""
        return torch.zeros(shape, dtype=torch.int32)

    def host_zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """int32 zeros."""
        return torch.zeros(shape, dtype=torch.int32)

    def event(
        self, clock: HasStep, recorder: Recorder, key: str, readiness: Readiness
    ) -> FakeEvent:
        """A fake one."""
        return FakeEvent(clock, recorder, key, readiness)

    def launch(self, start: ScriptedEvent, finish: ScriptedEvent, copy: Callable[[], None]) -> None:
        """The copy is made when ``finish`` is first seen complete."""
        finish.on_complete = copy
        start.record()
        finish.record()

    def copy_pages(
        self,
        target: torch.Tensor,
        target_pages: torch.Tensor,
        source: torch.Tensor,
        source_pages: torch.Tensor,
    ) -> None:
        """At once."""
        target[:, target_pages] = source[:, source_pages]

    def versions(self) -> dict[str, str]:
        """Nothing that torch's version does not say."""
        return {}


CPU = CpuDevice()
