"""``empty-queue``: transfers are refused, as after a failed host allocation: the queue stays
empty.
"""

from testbed.faults.base import Queue, Script, Timed, Trigger, concerns
from testbed.workloads.base import Bench


class EmptyQueue(Timed, frozen=True, tag_field="kind", tag="empty-queue"):
    """Writes, loads or both are refused on enqueue."""

    queue: Queue = "both"

    def reaches(self, script: Script) -> bool:
        """Whether there is a transfer to refuse."""
        return self.concerns_any(self.queue, script)

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Stand at the controller's gate."""

        def refuse(queue: str, key: str) -> bool:
            if not concerns(self.queue, queue) or not self.holds_in(bench.clock.step):
                return False
            fired(f"{queue} {key} refused")
            return True

        if bench.controller is not None:
            bench.controller.gates.append(refuse)
