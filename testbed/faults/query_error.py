"""``query-error``: a sick device: asked for an event, or waiting for it, it raises as CUDA does."""

from testbed.faults.base import Trigger
from testbed.faults.nth import Nth
from testbed.scripted_events import Readiness
from testbed.workloads.base import Bench


class QueryError(Nth, frozen=True, tag_field="kind", tag="query-error"):
    """The event raises RuntimeError("CUDA error: ...") when asked or waited for."""

    message: str = "an illegal memory access was encountered"

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Replace the events it concerns."""
        self.give(Readiness.error(self.message), bench, fired)
