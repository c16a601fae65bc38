"""What a fault is: a value that says what goes wrong, on which ranks and in which steps."""

from typing import Literal, Protocol

import msgspec

from testbed.scenario import Scenario, Where, select
from testbed.topology import Topology
from testbed.trace.events import Fired
from testbed.workloads.base import Bench

Queue = Literal["write", "load", "both"]


class Fault(Protocol):
    """One fault of a scenario. Installed only on the ranks it is ``on``, before the subject
    exists.
    """

    @property
    def on(self) -> Where:
        """The ranks it befalls."""

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput where the scenario gives the fault nothing to take hold of."""

    def adapt(self, scenario: Scenario) -> Scenario:
        """The scenario, with what the fault adds to it; asked on every rank."""

    def install(self, bench: Bench, fired: "Trigger") -> None:
        """Hook into the rank's parts. Call ``fired`` each time the fault really took effect."""


class Trigger:
    """Records that a fault took effect. index: the fault's place in the scenario's list."""

    def __init__(self, bench: Bench, index: int, kind: str) -> None:
        self._bench = bench
        self._index = index
        self._kind = kind

    def __call__(self, detail: str) -> None:
        """It did, just now."""
        self._bench.recorder.add(Fired, self._index, self._kind, detail)


class Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault that holds from step ``from_step`` until, and without, ``until_step``."""

    on: Where = "all"
    from_step: int = 0
    until_step: int | None = None

    def __post_init__(self) -> None:
        # Any topology serves to check the selector's form.
        select(self.on, Topology())
        over = self.until_step is not None and self.until_step <= self.from_step
        if self.from_step < 0 or over:
            raise ValueError(
                f"from_step {self.from_step}, until_step {self.until_step}: holds in no step"
            )

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput where the scenario gives the fault nothing to take hold of."""

    def adapt(self, scenario: Scenario) -> Scenario:
        """The scenario, with what the fault adds to it."""
        return scenario

    def holds_in(self, step: int) -> bool:
        """Whether the fault is on in that step."""
        return self.from_step <= step and (self.until_step is None or step < self.until_step)


def concerns(chosen: str, queue: str) -> bool:
    """Whether a fault on queue ``chosen`` concerns this queue; "both" is writes and loads."""
    return queue == chosen or (chosen == "both" and queue in ("write", "load"))
