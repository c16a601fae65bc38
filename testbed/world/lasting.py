"""A fleet that outlasts the loss of a host: the case that met it fails, the next one finds a new
fleet.
"""

from collections.abc import Callable
from types import TracebackType

from testbed.record import RunRecord
from testbed.scenario import Scenario
from testbed.world.fleet import Fleet


class LastingFleet:
    """``start`` makes a Fleet; it is called at once, and again after each loss. A context
    manager.
    """

    def __init__(self, start: Callable[[], Fleet]) -> None:
        self._start = start
        self._fleet = start()

    def __enter__(self) -> "LastingFleet":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fleet.close()

    def run(self, scenario: Scenario) -> RunRecord:
        """As ``Fleet.run``. Raises EnvironmentFault for the case in which a host was lost."""
        if self._fleet.lost:
            self._fleet.close()
            self._fleet = self._start()
        return self._fleet.run(scenario)
