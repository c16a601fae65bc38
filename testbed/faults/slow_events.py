"""``slow-events``: transfers finish later, or earlier, than the scenario says."""

from typing import Literal

from testbed.faults.base import Script, Timed, Trigger, concerns
from testbed.scripted_events import Readiness
from testbed.workloads.base import Bench


class SlowEvents(Timed, frozen=True, tag_field="kind", tag="slow-events"):
    """Events are ``steps`` later (earlier if negative), or take ``ms`` milliseconds instead.

    queue: write, load, both, backup (the ACKs of backups to storage; steps only), or prefetch (each
    page that comes from storage).
    """

    steps: int | None = None
    ms: float | None = None
    queue: Literal["write", "load", "both", "backup", "prefetch"] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.ms is None):
            raise ValueError("slow-events needs exactly one of steps and ms")
        if self.steps == 0:
            raise ValueError("slow-events steps is 0, which shifts nothing: give another number")
        if self.ms is not None and (self.ms < 0 or self.queue == "backup"):
            raise ValueError(f"slow-events ms is {self.ms}: give 0 or more, and not for backup")

    def reaches(self, script: Script) -> bool:
        """Whether there is a transfer to shift; what storage does, no script of a rank tells."""
        return self.queue in ("backup", "prefetch") or self.concerns_any(self.queue, script)

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Shift every event that concerns it."""

        def shift(queue: str, key: str, readiness: Readiness) -> Readiness:
            if not concerns(self.queue, queue) or not self.holds_in(bench.clock.step):
                return readiness
            if self.steps is not None:
                shifted, told = readiness.delayed(self.steps), f"{self.steps:+d} steps"
            else:
                shifted, told = Readiness.ms(self.ms or 0), f"{self.ms:g} ms"
            if shifted != readiness:
                fired(f"{queue} {key} {told}")
            return shifted

        if bench.controller is not None:
            bench.controller.reshapes.append(shift)
