"""What a fault is: a value that says what goes wrong, on which ranks and in which steps."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from testbed.model.errors import BadInput
from testbed.model.events import Fired
from testbed.model.scenario import Scenario, Where, select
from testbed.model.topology import Topology
from testbed.workloads.base import Bench

Queue = Literal["write", "load", "both"]

Script = Mapping[str, Sequence[int]]
"""Of one rank whose transfers are known beforehand: queue -> the step of each that it enqueues."""


class Fault(Protocol):
    """One fault of a scenario. Installed only on the ranks it is ``on``, before the subject
    exists.
    """

    @property
    def on(self) -> Where:
        """The ranks it befalls."""

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput where the scenario gives the fault nothing to take hold of."""

    def reaches(self, script: Script) -> bool:
        """Whether a rank of that script has what the fault could take hold of."""

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
        if self.from_step >= scenario.steps:
            raise BadInput(
                f"from_step is {self.from_step}: the run has steps 0 to {scenario.steps - 1}"
            )

    def reaches(self, script: Script) -> bool:
        """Whether it could take hold of something there; a fault of transfers says of which."""
        return True

    def adapt(self, scenario: Scenario) -> Scenario:
        """The scenario, with what the fault adds to it."""
        return scenario

    def holds_in(self, step: int) -> bool:
        """Whether the fault is on in that step."""
        return self.from_step <= step and (self.until_step is None or step < self.until_step)

    def concerns_any(self, chosen: str, script: Script, least: int = 1) -> bool:
        """Whether a queue that ``chosen`` stands for has ``least`` transfers, any of them in a step
        in which the fault holds. Other faults may take some away; none adds one.
        """
        return any(
            concerns(chosen, queue) and len(steps) >= least and any(map(self.holds_in, steps))
            for queue, steps in script.items()
        )


def concerns(chosen: str, queue: str) -> bool:
    """Whether a fault on queue ``chosen`` concerns this queue; "both" is writes and loads."""
    return queue == chosen or (chosen == "both" and queue in ("write", "load"))


def check_nth(nth: int | None) -> None:
    """Raise ValueError for an ``nth`` that nothing has."""
    if nth is not None and nth < 0:
        raise ValueError(f"nth is {nth}: give a number from 0 on, or null for all")
