"""A fleet that outlasts the loss of a host: the case that met it fails, the next one finds a new
fleet.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from testbed.model.record import RunRecord
from testbed.model.scenario import Scenario


class AnyFleet(Protocol):
    """What is asked of a fleet: ``Fleet`` itself, or a test's stand-in. A context manager."""

    @property
    def lost(self) -> str:
        """Why it can run no further case, "" while it can."""

    def __enter__(self) -> "AnyFleet": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def run(self, scenario: Scenario) -> RunRecord:
        """Run one case. Raises BadInput or EnvironmentFault."""

    def close(self) -> None:
        """End all of it; safe to call twice."""


class MakesFleet(Protocol):
    """How a fleet is made; ``Fleet`` itself, or a test's stand-in."""

    def __call__(self, world: int, *, oversubscribe: bool = False, port: int = 0) -> AnyFleet:
        """A running fleet of ``world`` hosts. Raises EnvironmentFault."""


class LastingFleet:
    """``start`` makes a fleet; it is called at once, and again after each loss. A context
    manager.
    """

    def __init__(self, start: Callable[[], AnyFleet]) -> None:
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
        self.renew()
        return self._fleet.run(scenario)

    def renew(self) -> None:
        """Start another fleet if the last one was lost. Raises EnvironmentFault if that fails."""
        if self._fleet.lost:
            self._fleet.close()
            self._fleet = self._start()
