"""What faults that strike at one moment share."""

from collections.abc import Callable
from typing import Literal

from testbed.faults.base import Timed
from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario
from testbed.recorder.operations import OPERATIONS
from testbed.workloads.base import Bench

ANY = "any"
_OPERATIONS = (ANY, *OPERATIONS)


class Moment(Timed, frozen=True):
    """Strikes in the first step in which it holds.

    when: as the step begins, as it ends, or at the exit, the last thing the rank does. inside: in
    the middle of an operation instead, ``all_reduce`` or ``any``: the rank has entered it, and its
    peers wait for what it would have sent.
    """

    when: Literal["begin", "end", "exit"] = "begin"
    inside: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inside is not None and self.inside not in _OPERATIONS:
            raise ValueError(f"inside is {self.inside!r}: give one of {', '.join(_OPERATIONS)}")
        if self.inside is not None and self.when != "begin":
            raise ValueError(f"inside {self.inside} and when {self.when}: give one of them")

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput for an exit that comes when the fault no longer holds."""
        super().check(scenario)
        last = scenario.steps - 1
        if self.when == "exit" and not self.holds_in(last):
            raise BadInput(
                f"until_step is {self.until_step}, but the exit comes in the last step, {last}"
            )

    def strike(self, bench: Bench, blow: Callable[[str], None]) -> None:
        """Have ``blow`` called at that moment, told which one it is."""

        def in_operation(op: str) -> None:
            if self.inside in (ANY, op) and self.holds_in(bench.clock.step):
                blow(f"inside {op}")

        def at_hand() -> None:
            if self.holds_in(bench.clock.step):
                blow(f"at the {self.when}")

        hooks = bench.hooks
        if self.inside is not None:
            hooks.inside.append(in_operation)
        else:
            {"begin": hooks.step, "end": hooks.after, "exit": hooks.exit}[self.when].append(at_hand)
