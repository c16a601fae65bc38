"""``never-ready``: the event of a transfer never fires."""

from testbed.faults.base import Trigger
from testbed.faults.nth import Nth
from testbed.scripted_events import Readiness
from testbed.workloads.base import Bench


class NeverReady(Nth, frozen=True, tag_field="kind", tag="never-ready"):
    """The event is never ready; to wait for it hangs the rank."""

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Replace the events it concerns."""
        self.give(Readiness.never(), bench, fired)
