"""This testbed: a case on a fleet, judged and kept."""

import time
from typing import Any

from testbed.measure.harness.case import FAULTY_STEP, STEPS, VICTIM, Kind, topology_of
from testbed.measure.harness.contender import Ended
from testbed.model.errors import EnvironmentFault
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome
from testbed.sessions.execute import execute
from testbed.sessions.store import RunStore
from testbed.sessions.world import RunsCases

_FAULTS: dict[Kind, dict[str, Any]] = {
    Kind.CRASH: {"kind": "kill", "signal": "SIGKILL", "when": "begin"},
    Kind.SKIPPED: {"kind": "skip-sync"},
}


class OnFleet:
    """fleet: with room for ``world`` ranks. store: where the records go."""

    name = "fleet (this testbed)"
    isolates = True

    def __init__(self, fleet: RunsCases, store: RunStore, world: int) -> None:
        self._fleet = fleet
        self._store = store
        self._topology = topology_of(world)

    def null_ms(self, count: int) -> list[float]:
        """From fork to verdict, the record on disk."""
        return [self._clean_ms(null_case(self._topology)) for _ in range(count)]

    def wide_ms(self, topology: Topology, count: int) -> list[float]:
        """Null cases of another topology."""
        return [self._clean_ms(null_case(topology)) for _ in range(count)]

    def fault(self, kind: Kind, patience_s: float) -> tuple[Ended, Ended]:
        """A rank that has left its loop is kept until the case is over: it always lives on."""
        faulty = _faulty(Kind.SKIPPED if kind is Kind.LIVES_ON else kind, self._topology)
        faulty = faulty.but(deadline_ms=round(patience_s * 1e3))
        return self._ended(faulty), self._ended(null_case(self._topology))

    def _ended(self, scenario: Scenario) -> Ended:
        began = time.monotonic()
        verdict = execute(self._fleet, scenario, self._store).verdict
        ms = (time.monotonic() - began) * 1e3
        passed = verdict.outcome is Outcome.OK
        told = "passed" if passed else f"{verdict.outcome}: {verdict.summary}"
        return Ended(ms, told, passed, not passed and VICTIM in verdict.ranks)

    def _clean_ms(self, scenario: Scenario) -> float:
        ended = self._ended(scenario)
        if not ended.passed or ended.ms is None:
            raise EnvironmentFault(f"{scenario.case_id}: {ended.told}")
        return ended.ms


def null_case(topology: Topology) -> Scenario:
    """One step in which there is nothing to transfer."""
    return Scenario(name="null", topology=topology, steps=1, workload={"kind": "scripted"})


def _faulty(kind: Kind, topology: Topology) -> Scenario:
    """As many agreements as other harnesses have collectives, one of them struck."""
    step = {"from_step": FAULTY_STEP, "until_step": FAULTY_STEP + 1}
    fault = {**_FAULTS[kind], **step, "on": {"rank": VICTIM}}
    return Scenario(
        name=f"harness-{kind.value}",
        topology=topology,
        steps=STEPS,
        workload={"kind": "scripted"},
        faults=[fault],
    )
