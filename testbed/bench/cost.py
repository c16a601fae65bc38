"""Section ``cost``: what a step of the agreement costs per role, against its bare operations."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from testbed.bench.measure import ALL, OfRanks, roles, run
from testbed.bench.plans import PLAIN, RAW, RECORDED, CostPlan, Setting
from testbed.bench.stats import Spread, quantile, ratio
from testbed.model.topology import Topology
from testbed.sessions.world import RunsCases

Row = dict[str, Any]

RECORDER_TARGET, SUBJECT_TARGET = 1.05, 1.10
"""What the testbed may cost on the hot path: a recorded step against the same unrecorded, and a
``batched`` step against its bare operations."""


def measure(on: RunsCases, plan: CostPlan, topology: Topology, setting: Setting) -> list[Row]:
    """A row per subject, way and role. x_raw, x_plain: against these ways of the same subject;
    x_base: against the first subject the same way. Raises EnvironmentFault."""
    return list(_rows(plan, topology, run(on, plan, topology, setting)))


def _rows(plan: CostPlan, topology: Topology, found: OfRanks) -> Iterator[Row]:
    of = roles(topology)
    every = of if len(of) == 1 else {**of, ALL: list(range(topology.size))}
    for subject in plan.subjects:
        for role, ranks in every.items():
            for way in plan.ways:
                yield {
                    "topology": str(topology),
                    "subject": subject,
                    "way": way,
                    "role": role,
                    **_operations(found, subject, ranks),
                    **_times(found, f"{subject}/{way}", ranks),
                    "x_raw": _ratio(found, subject, way, RAW, ranks, plan.ways),
                    "x_plain": _ratio(found, subject, way, PLAIN, ranks, plan.ways),
                    "base": plan.subjects[0],
                    "x_base": _over_base(found, plan, subject, way, ranks),
                }


def _operations(found: OfRanks, subject: str, ranks: Sequence[int]) -> dict[str, float]:
    """Per step and rank, a mean over the role's ranks."""
    of_each = [found[rank][0]["ops"][subject] for rank in ranks]
    return {kind: statistics.fmean(each[kind] for each in of_each) for kind in of_each[0]}


def _times(found: OfRanks, way: str, ranks: Sequence[int]) -> dict[str, float]:
    rounds = [entry for rank in ranks for entry in found[rank][1:]]
    steps = [taken / 1e3 for entry in rounds for taken in entry["ns"][way]]
    return {
        "median_us": quantile(steps, 0.5),
        "p90_us": quantile(steps, 0.9),
        "p99_us": quantile(steps, 0.99),
        "cpu_us": statistics.median(entry["cpu_ns"][way] / 1e3 for entry in rounds),
        "steps": len(steps) // len(ranks),
    }


def _ratio(
    found: OfRanks, subject: str, way: str, against: str, ranks: Sequence[int], ways: Sequence[str]
) -> Spread | None:
    if way == against or against not in ways:
        return None
    over, under = (_by_round(found, f"{subject}/{name}", ranks) for name in (way, against))
    return ratio(over, under)


def _over_base(
    found: OfRanks, plan: CostPlan, subject: str, way: str, ranks: Sequence[int]
) -> Spread | None:
    """Against the first subject the same way."""
    base = plan.subjects[0]
    if subject == base:
        return None
    over, under = (_by_round(found, f"{name}/{way}", ranks) for name in (subject, base))
    # Where a protocol has no operation at all, its bare loop takes no time.
    return ratio(over, under) if min(under) > 0 else None


def _by_round(found: OfRanks, way: str, ranks: Sequence[int]) -> list[float]:
    """Median step of each round, over all ranks of the role."""
    rounds = range(1, len(found[ranks[0]]))
    return [
        statistics.median(taken for rank in ranks for taken in found[rank][number]["ns"][way])
        for number in rounds
    ]


def overhead(rows: Sequence[Row], *, oversubscribed: bool = False) -> list[Row]:
    """What the testbed itself costs, over all ranks: the recorder beneath each subject, and
    ``batched`` around its bare operations; with the target, and whether it is met. oversubscribed:
    there were more ranks than cores."""
    role = ALL if any(row["role"] == ALL for row in rows) else "leader"
    of_all = [row for row in rows if row["role"] == role]
    told: list[Row] = []
    for row in of_all:
        if row["way"] == RECORDED and row["x_plain"]:
            told.append(_overhead("recorder", row, row["x_plain"], RECORDER_TARGET))
        if row["way"] == PLAIN and row["subject"] == "batched" and row["x_raw"]:
            told.append(_overhead("subject", row, row["x_raw"], SUBJECT_TARGET))
    return [{**row, "oversubscribed": oversubscribed} for row in told]


def _overhead(what: str, row: Row, times: Spread, target: float) -> Row:
    return {
        "what": what,
        "subject": row["subject"],
        "topology": row["topology"],
        "times": times,
        "target": target,
        "met": _met(times, target),
    }


def _met(times: Spread, target: float) -> str:
    """A median is known within its bounds only."""
    if times["bounds"] is None:
        return "open"
    lowest, highest = times["bounds"]
    if highest <= target:
        return "yes"
    return "no" if lowest > target else "open"
