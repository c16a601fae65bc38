"""How many hosts a fleet has, and what the commands ask of one. Imports no torch."""

from typing import Protocol

from testbed.model.errors import BadInput, brief
from testbed.model.record import RunRecord
from testbed.model.scenario import Scenario
from testbed.model.topology import MAX_RANKS

DEFAULT_WORLD = 4


class RunsCases(Protocol):
    """What ``execute`` needs of a fleet."""

    def run(self, scenario: Scenario) -> RunRecord:
        """Run one case. Raises BadInput or EnvironmentFault."""


def check_world(world: int, option: str) -> None:
    """Raise BadInput for a number of hosts that no fleet has; ``option`` is where it was given."""
    if not 1 <= world <= MAX_RANKS:
        raise BadInput(f"{option} is {brief(world)}: give a whole number from 1 to {MAX_RANKS}")
