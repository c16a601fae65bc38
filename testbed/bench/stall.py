"""Section ``stall``: how long followers wait for transfers that are later there than on the leader
stage."""

from collections.abc import Iterator
from typing import Any

from testbed.bench.measure import OfRanks, roles, run
from testbed.bench.plans import Setting, SkewPlan
from testbed.bench.stats import quantile
from testbed.runs import RunsCases
from testbed.topology import Topology

Row = dict[str, Any]


def measure(on: RunsCases, plan: SkewPlan, topology: Topology, setting: Setting) -> list[Row]:
    """A row per subject, skew and role: the stall and the whole check, of a step. Raises
    EnvironmentFault."""
    return list(_rows(plan, topology, run(on, plan, topology, setting)))


def _rows(plan: SkewPlan, topology: Topology, found: OfRanks) -> Iterator[Row]:
    for subject in plan.subjects:
        for skew_us in plan.skews_us:
            for role, ranks in roles(topology).items():
                runs = [
                    entry
                    for rank in ranks
                    for figures in found[rank]
                    for entry in figures["skew"]
                    if entry[:2] == [subject, skew_us]
                ]
                stalls = [taken / 1e3 for entry in runs for taken in entry[2]]
                checks = [taken / 1e3 for entry in runs for taken in entry[3]]
                yield {
                    "topology": str(topology),
                    "subject": subject,
                    "role": role,
                    "skew_us": skew_us,
                    "step_us": plan.step_us,
                    "stall_median_us": quantile(stalls, 0.5),
                    "stall_p90_us": quantile(stalls, 0.9),
                    "check_median_us": quantile(checks, 0.5),
                    "check_p90_us": quantile(checks, 0.9),
                }
