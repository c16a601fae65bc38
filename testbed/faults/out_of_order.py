"""``out-of-order``: a later transfer is ready before an earlier one of the same queue."""

from collections import Counter

from testbed.faults.base import Queue, Script, Timed, Trigger, check_nth, concerns
from testbed.scripted_events import Readiness
from testbed.workloads.base import Bench


class OutOfOrder(Timed, frozen=True, tag_field="kind", tag="out-of-order"):
    """The ``nth`` transfer (from 0) of a queue is ``steps`` later than scripted, and the one after
    it ready before it; null: the first of every two. Events scripted in steps only.
    """

    queue: Queue = "both"
    nth: int | None = None
    steps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nth(self.nth)
        if self.steps < 1:
            raise ValueError(f"out-of-order steps is {self.steps}: give 1 or more")

    def reaches(self, script: Script) -> bool:
        """Whether there is a transfer to overtake, and one after it."""
        return self.concerns_any(self.queue, script, (self.nth or 0) + 2)

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Hold one transfer back, let the next one overtake it."""
        seen: Counter[str] = Counter()
        held: dict[str, tuple[str, int]] = {}

        def reorder(queue: str, key: str, readiness: Readiness) -> Readiness:
            place, now = seen[queue], bench.clock.step
            seen[queue] += 1
            if not concerns(self.queue, queue) or readiness.kind != "steps":
                return readiness
            if queue in held:
                earlier, due = held.pop(queue)
                own = min(now + int(readiness.after), due - 1)
                if own < now:
                    return readiness  # the earlier one is ready already
                fired(f"{queue} {key} ready in step {own}, {earlier} before it in step {due}")
                return Readiness.steps(own - now)
            if self.nth not in (None, place) or not self.holds_in(now):
                return readiness
            late = readiness.delayed(self.steps)
            due = now + int(late.after)
            held[queue] = (key, due)
            # Felt by itself, whether another one comes to overtake it or not.
            fired(f"{queue} {key} held back until step {due}")
            return late

        if bench.controller is not None:
            bench.controller.reshapes.append(reorder)
