"""``no-controller``: the rank never had a transfer controller, so nothing is enqueued there."""

import msgspec

from testbed.faults.base import Trigger
from testbed.scenario import Where, select
from testbed.topology import Topology
from testbed.workloads.base import Bench


class NoController(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="no-controller"
):
    """A rank without a transfer controller, from the start."""

    on: Where = "all"

    def __post_init__(self) -> None:
        select(self.on, Topology())

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Take the controller away."""
        bench.controller = None
        fired("no controller")
