"""``late``: a rank enters its round of the subject's check late."""

import time

from testbed.faults.base import Timed, Trigger
from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario
from testbed.workloads.base import Bench


class Late(Timed, frozen=True, tag_field="kind", tag="late"):
    """The round of a step begins ``ms`` milliseconds late, or is made ``steps`` steps later, beside
    that step's own; in the last step at the latest.
    """

    steps: int | None = None
    ms: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.ms is None):
            raise ValueError("late needs exactly one of steps and ms")
        if (self.steps is not None and self.steps < 1) or (self.ms is not None and self.ms <= 0):
            raise ValueError(f"late steps {self.steps}, ms {self.ms}: give more than 0")

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput for rounds that could only be put off past the end."""
        super().check(scenario)
        last = scenario.steps - 1
        if self.steps is not None and self.from_step >= last:
            raise BadInput(f"from_step is {self.from_step}: no step is left after the last, {last}")

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Put rounds off, or wait before them."""
        if self.steps is None:
            self._wait(bench, fired)
        else:
            self._put_off(self.steps, bench, fired)

    def _wait(self, bench: Bench, fired: Trigger) -> None:
        def wait() -> None:
            if self.holds_in(bench.clock.step):
                fired(f"round {self.ms:g} ms late")
                time.sleep((self.ms or 0) / 1000)

        bench.hooks.round.append(wait)

    def _put_off(self, steps: int, bench: Bench, fired: Trigger) -> None:
        last = bench.scenario.steps - 1
        owed: list[int] = []  # the step each is due in, earliest first

        def put_off(rounds: int) -> int:
            step = bench.clock.step
            if self.holds_in(step) and rounds and step < last:
                due = min(step + steps, last)
                fired(f"round made in step {due}")
                owed.extend([due] * rounds)
                rounds = 0
            while owed and owed[0] <= step:
                owed.pop(0)
                rounds += 1
            return rounds

        bench.hooks.rounds.append(put_off)
