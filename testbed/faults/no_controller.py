"""``no-controller``: the rank never had a transfer controller, so nothing is enqueued there."""

import msgspec

from testbed.faults.base import Script, Trigger
from testbed.model.scenario import Scenario, Where, select
from testbed.model.topology import Topology
from testbed.workloads.base import Bench


class NoController(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="no-controller"
):
    """A rank without a transfer controller, from the start."""

    on: Where = "all"

    def __post_init__(self) -> None:
        select(self.on, Topology())

    def check(self, scenario: Scenario) -> None:
        """Nothing to check: every rank has a controller."""

    def reaches(self, script: Script) -> bool:
        """Whatever its script: the controller is gone."""
        return True

    def adapt(self, scenario: Scenario) -> Scenario:
        """Nothing to add."""
        return scenario

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Take the controller away."""
        bench.controller = None
        fired("no controller")
