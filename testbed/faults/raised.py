"""``raise``: the rank's code raises an exception."""

from testbed.faults.base import Trigger
from testbed.faults.moment import Moment
from testbed.workloads.base import Bench


class Raise(Moment, frozen=True, tag_field="kind", tag="raise"):
    """RuntimeError with this ``message``, which nobody catches."""

    message: str = "raised by the fault"

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Wait for the moment."""

        def fail(moment: str) -> None:
            fired(moment)
            raise RuntimeError(self.message)

        self.strike(bench, fail)
