"""Running one plan on a fleet of the benchmark's hosts: what its ranks measured, rank by rank."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from testbed.bench.plans import AnyPlan, Setting, scenario_of
from testbed.bench.ranks.host import MODULE
from testbed.fleet import Fleet
from testbed.model.errors import EnvironmentFault
from testbed.model.events import Measured
from testbed.model.topology import Topology
from testbed.sessions import nodes
from testbed.sessions.world import RunsCases

# A probe wakes every host, and so disturbs what is measured.
_PROBE_S = 2.0

LEADER, MIDDLE, LAST = "leader", "middle", "last"
ALL = "all"
"""Roles of ranks: the leader stage; stages that receive and send on; the one that only receives."""

OfRanks = Mapping[int, Sequence[Mapping[str, Any]]]
"""rank -> what it sent home, a round at a time."""


def fleet(hosts: int) -> Fleet:
    """Hosts that fork ranks of the benchmark, several of them each if need be. Raises
    EnvironmentFault."""
    return Fleet(hosts, oversubscribe=True, hosts=MODULE, probe_s=_PROBE_S)


def awaited_fleet(hosts: int, options: dict[str, Any]) -> AbstractContextManager[RunsCases]:
    """The same of hosts that were started elsewhere; options: of ``testbed.sessions.nodes``."""
    return nodes.awaited_fleet(hosts, options, oversubscribe=True, hosts=MODULE, probe_s=_PROBE_S)


def run(on: RunsCases, plan: AnyPlan, topology: Topology, setting: Setting) -> OfRanks:
    """What every rank measured. Raises EnvironmentFault if one of them did not come to its end."""
    scenario = scenario_of(plan, topology, setting)
    record = on.run(scenario)
    if record.ended != "finished" or any(rank.overflow for rank in record.ranks):
        why = "; ".join(record.trouble) or f"its ranks ended by {record.ended}"
        raise EnvironmentFault(f"{scenario.name} on {topology}: {why}")
    return {
        rank.rank: [event.figures for event in rank.events if isinstance(event, Measured)]
        for rank in record.ranks
    }


def roles(topology: Topology) -> dict[str, list[int]]:
    """Role -> its ranks, leaders first; a role without ranks is left out."""
    of: dict[str, list[int]] = {}
    for rank in range(topology.size):
        stage = topology.coords(rank).pp
        last = stage == topology.pp - 1
        of.setdefault(LEADER if stage == 0 else LAST if last else MIDDLE, []).append(rank)
    return of
