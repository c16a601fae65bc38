"""``microbatch-lag``: a stage is one microbatch behind the stage above it."""

from testbed.faults.base import Timed, Trigger
from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario, select
from testbed.workloads.base import Bench


class MicrobatchLag(Timed, frozen=True, tag_field="kind", tag="microbatch-lag"):
    """The stage takes in the next microbatch before it deals with its own: it runs a step behind
    the stage above. Needs the model's traffic; takes no effect on the first stage.
    """

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput without the model's traffic."""
        super().check(scenario)
        if not scenario.carries_traffic:
            raise BadInput('microbatch-lag needs the model\'s traffic: set "traffic": true')
        if select(self.on, scenario.topology) <= set(scenario.topology.leaders):
            raise BadInput("microbatch-lag is on the first stage only: select a later one")

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Hold the rank's pipeline traffic back."""

        def lag() -> bool:
            if not self.holds_in(bench.clock.step):
                return False
            fired("one microbatch behind")
            return True

        bench.hooks.lags.append(lag)
