"""Sections ``throughput`` and ``curve``: input tokens per second around the agreement, and what one
protocol gains over another the less there is to compute in a step."""

import statistics
from collections.abc import Sequence
from typing import Any

from testbed.bench.measure import OfRanks
from testbed.bench.plans import PipelinePlan
from testbed.bench.stats import Spread, crossing, falling, ratio, spread
from testbed.model.topology import Topology

Row = dict[str, Any]

CLAIMED_GAIN = 0.37
"""What the change that started the project says of 32K inputs."""
CLAIMED_TOKENS_PER_S = (494_000, 677_000)
"""Before and after, as it says."""


def rows(plan: PipelinePlan, topology: Topology, found: OfRanks, base: str) -> list[Row]:
    """A row per point and subject. x_base: tokens per second against those of ``base``."""
    told: list[Row] = []
    for number, point in enumerate(plan.points):
        for subject in plan.subjects:
            runs = _runs(found, number, subject)
            rates = [run["tokens"] / run["elapsed_us"] * 1e6 for run in runs]
            others = [run["tokens"] / run["elapsed_us"] * 1e6 for run in _runs(found, number, base)]
            told.append(
                {
                    "topology": str(topology),
                    "length": point.length,
                    "subject": subject,
                    "steps": point.steps,
                    "base": base,
                    "tokens_per_s": spread(rates),
                    "step_us": spread([run["elapsed_us"] / point.steps for run in runs]),
                    "compute_us": statistics.median(run["compute_us"] for run in runs)
                    / point.steps,
                    "check_us": statistics.median(run["check_us"] for run in runs) / point.steps,
                    "x_base": ratio(rates, others) if subject != base else None,
                }
            )
    return told


def curve(plan: PipelinePlan, topology: Topology, found: OfRanks, pair: Sequence[str]) -> Row:
    """What ``pair[1]`` gains over ``pair[0]`` at each point, and the compute per step at which it
    gains what was claimed. model_gain: what steps that cost what they cost without compute would
    gain there."""
    base, better = pair
    points: list[dict[str, Any]] = []
    for number, point in enumerate(plan.points):
        slow, fast = (
            [run["elapsed_us"] / point.steps for run in _runs(found, number, name)]
            for name in (base, better)
        )
        computes = [run["compute_us"] / point.steps for run in _runs(found, number, better)]
        gained = ratio(slow, fast)
        points.append(
            {
                "step_us": point.step_us,
                "compute_us": statistics.median(computes),
                "base_us": statistics.median(slow),
                "better_us": statistics.median(fast),
                "gain": spread_of_gain(gained),
            }
        )
    # More compute hides more of the agreement: a gain that rises with it is noise.
    fallen = {
        which: falling([each["gain"][which] for each in points])
        for which in ("low", "median", "high")
    }
    first = points[0]
    for each in points:
        more = each["compute_us"] - first["compute_us"]
        each["model_gain"] = (first["base_us"] + more) / (first["better_us"] + more) - 1
    return {
        "topology": str(topology),
        "base": base,
        "better": better,
        "length": plan.points[0].length,
        "points": points,
        "target": CLAIMED_GAIN,
        "at_most": fallen["median"][0],
        "reached_at_us": {
            which: crossing([each["compute_us"] for each in points], gains, CLAIMED_GAIN)
            for which, gains in fallen.items()
        },
    }


def spread_of_gain(times: Spread) -> Spread:
    """1.37 times is a gain of 0.37."""
    bounds = times["bounds"]
    return Spread(
        median=times["median"] - 1,
        low=times["low"] - 1,
        high=times["high"] - 1,
        bounds=None if bounds is None else (bounds[0] - 1, bounds[1] - 1),
    )


def claimed_saving_us_per_token() -> float:
    """What the claimed figures say an input token takes less."""
    before, after = CLAIMED_TOKENS_PER_S
    return 1e6 / before - 1e6 / after


def _runs(found: OfRanks, number: int, subject: str) -> list[dict[str, float]]:
    """One entry a round. elapsed_us: of the slowest rank; compute_us, check_us: of the average
    one."""
    rounds = len(next(iter(found.values())))
    told = []
    for at in range(rounds):
        entries = [
            entry
            for of_rank in found.values()
            for entry in of_rank[at]["pipeline"]
            if entry[0] == number and entry[1] == subject
        ]
        told.append(
            {
                "elapsed_us": max(entry[2] for entry in entries) / 1e3,
                "compute_us": statistics.fmean(entry[3] for entry in entries) / 1e3,
                "check_us": statistics.fmean(entry[4] for entry in entries) / 1e3,
                "tokens": entries[0][5],
            }
        )
    return told
