"""Section ``scaling``: the cost of a step by pipeline hops and group size, as far as the machine
goes."""

from collections.abc import Callable, Sequence
from typing import Any

from testbed.bench.cost import measure as measure_cost
from testbed.bench.measure import ALL
from testbed.bench.plans import CostPlan, Setting
from testbed.model.topology import Topology
from testbed.sessions.world import RunsCases

Row = dict[str, Any]

STAGES, GROUP_SIZES = (1, 2, 4, 8), (1, 2, 4)


def topologies(max_ranks: int) -> list[Topology]:
    """Every combination with two ranks at least and that many at most, the smallest first."""
    every = [Topology(pp=pp, tp=tp) for pp in STAGES for tp in GROUP_SIZES]
    return sorted((each for each in every if 1 < each.size <= max_ranks), key=lambda t: t.size)


def measure(
    on: RunsCases,
    plan: CostPlan,
    over: Sequence[Topology],
    cores: int,
    setting: Setting,
    announce: Callable[[str], None],
) -> list[Row]:
    """A row per topology, subject and way, over all ranks. oversubscribed: more ranks than cores.
    Raises EnvironmentFault."""
    told: list[Row] = []
    for topology in over:
        announce(f"scaling {topology}")
        rows = measure_cost(on, plan, topology, setting)
        whole = ALL if any(row["role"] == ALL for row in rows) else rows[0]["role"]
        told += [
            {
                **row,
                "ranks": topology.size,
                "hops": topology.pp - 1,
                "group": topology.tp,
                "oversubscribed": topology.size > cores,
            }
            for row in rows
            if row["role"] == whole
        ]
    return told
