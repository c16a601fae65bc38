"""Section ``stall``: how long followers wait for transfers that are later there than on the leader
stage."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from testbed.bench.measure import OfRanks, roles, run
from testbed.bench.plans import Setting, SkewPlan
from testbed.bench.stats import quantile, ratio
from testbed.model.topology import Topology
from testbed.sessions.world import RunsCases

Row = dict[str, Any]


def measure(on: RunsCases, plan: SkewPlan, topology: Topology, setting: Setting) -> list[Row]:
    """A row per subject, skew and role: the stall and the whole check, of a step. x_base: the check
    against that of the first subject under the same skew. Raises EnvironmentFault."""
    return list(_rows(plan, topology, run(on, plan, topology, setting)))


def _rows(plan: SkewPlan, topology: Topology, found: OfRanks) -> Iterator[Row]:
    base = plan.subjects[0]
    for subject in plan.subjects:
        for skew_us in plan.skews_us:
            for role, ranks in roles(topology).items():
                stalls, checks = _by_round(found, ranks, subject, skew_us)
                _, others = _by_round(found, ranks, base, skew_us)
                yield {
                    "topology": str(topology),
                    "subject": subject,
                    "role": role,
                    "skew_us": skew_us,
                    "step_us": plan.step_us,
                    "base": base,
                    **_times("stall", stalls),
                    **_times("check", checks),
                    "x_base": None
                    if subject == base
                    else ratio([median(of) for of in checks], [median(of) for of in others]),
                }


def _by_round(
    found: OfRanks, ranks: Sequence[int], subject: str, skew_us: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Stalls and checks of the role's ranks in microseconds, a list a round."""
    stalls: list[list[float]] = []
    checks: list[list[float]] = []
    for figures in zip(*(found[rank] for rank in ranks), strict=True):
        entries = [
            entry
            for of_rank in figures
            for entry in of_rank["skew"]
            if entry[:2] == [subject, skew_us]
        ]
        stalls.append([taken / 1e3 for entry in entries for taken in entry[2]])
        checks.append([taken / 1e3 for entry in entries for taken in entry[3]])
    return stalls, checks


def _times(what: str, rounds: Sequence[Sequence[float]]) -> dict[str, float]:
    steps = [taken for of_round in rounds for taken in of_round]
    return {f"{what}_median_us": quantile(steps, 0.5), f"{what}_p90_us": quantile(steps, 0.9)}
