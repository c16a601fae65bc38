"""What faults on the events of chosen transfers share."""

from collections import Counter

from testbed.faults.base import Queue, Script, Timed, Trigger, check_nth, concerns
from testbed.scripted_events import Readiness
from testbed.workloads.base import Bench


class Nth(Timed, frozen=True):
    """Concerns the ``nth`` transfer (from 0) that the rank enqueues in each queue; null: all."""

    queue: Queue = "both"
    nth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nth(self.nth)

    def reaches(self, script: Script) -> bool:
        """Whether there are so many transfers."""
        return self.concerns_any(self.queue, script, (self.nth or 0) + 1)

    def give(self, readiness: Readiness, bench: Bench, fired: Trigger) -> None:
        """Have the transfers it concerns be ready as ``readiness`` says instead."""
        seen: Counter[str] = Counter()

        def replace(queue: str, key: str, scripted: Readiness) -> Readiness:
            place = seen[queue]
            seen[queue] += 1
            if not concerns(self.queue, queue) or self.nth not in (None, place):
                return scripted
            if not self.holds_in(bench.clock.step):
                return scripted
            fired(f"{queue} {key} {readiness.kind}")
            return readiness

        if bench.controller is not None:
            bench.controller.reshapes.append(replace)
