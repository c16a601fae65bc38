"""budget: operations per step and role are no more than the protocol promises."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from testbed.analysis.sides import named, singled_out, told_apart
from testbed.analysis.view import Op, RankStep, View
from testbed.model.errors import BadInput
from testbed.model.topology import GroupSpec, Topology
from testbed.model.verdict import Finding, Outcome

NAME = "budget"
CLAIM = "budget:"
WORLD = "world"
"""Name of the group of all ranks."""


class Promise(NamedTuple):
    """Per step. agreements: each one all_reduce on every group of the leader stage, one send and
    one receive per pipeline hop. storage: with storage on, reductions of the storage counts on the
    groups of every stage. local: reductions of each stage by itself, on its tensor-parallel groups.
    world: collectives over all ranks. followers_ask: events are asked on followers too.
    """

    agreements: int = 0
    storage: int = 0
    local: int = 0
    world: int = 0
    followers_ask: bool = False


PROTOCOLS = {
    "separate": Promise(agreements=2, storage=1),
    "batched": Promise(agreements=1, storage=1),
    "fused": Promise(agreements=1),
    "local": Promise(local=2, storage=1, followers_ask=True),
    "deferred": Promise(agreements=1, storage=1),
    "world": Promise(world=1, storage=1, followers_ask=True),
}
"""By SGLang release: local up to 0.5.12, separate 0.5.13 to 0.5.18, batched 0.5.19 (with storage as
its description says), fused from 0.5.20 on."""
ONE_VECTOR = ("separate", "batched", "fused")
"""Protocols that with one stage have one vector carry everything."""


class Excess(NamedTuple):
    """One rank did more than promised. what: ``2 all_reduce on tp[pp0], promised 1 (...)``."""

    rank: int
    channel: str
    what: str


def promise(protocol: str, topology: Topology, storage: bool) -> Promise:
    """What ``protocol`` promises there. Raises BadInput for a protocol without a stated budget."""
    if protocol not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        raise BadInput(f"budget of {protocol!r} is unknown: state one of {known}")
    if topology.pp == 1 and protocol in ONE_VECTOR:
        return Promise(agreements=1)
    stated = PROTOCOLS[protocol]
    return stated if storage else stated._replace(storage=0)


def check(view: View) -> Iterable[Finding]:
    """Each rank keeps to the budget that the subject promises and to those the scenario claims.

    An upper bound: a rank that does less shows up elsewhere. The model's traffic does not count,
    nor what the scenario has the loop call besides the check.
    The first step over budget is told, with all ranks over it.
    """
    protocols = dict.fromkeys(view.claimed(CLAIM))
    if view.record.promises.get(NAME):
        protocols = {str(view.record.promises[NAME]): None} | protocols
    for protocol in protocols:
        stated = promise(protocol, view.topology, view.scenario.storage)
        yield from _first_over(view, protocol, stated)


def _first_over(view: View, protocol: str, stated: Promise) -> Iterator[Finding]:
    for step in view.steps:
        over = [
            excess
            for rank in view.ranks.values()
            for excess in _excesses(view, rank.rank, rank.at(step), stated)
        ]
        if over:
            did: dict[int, str] = {}
            for excess in over:
                did.setdefault(excess.rank, excess.what)
            ranks = tuple(did)
            summary = f"budget of {protocol}: {named(ranks)}: {over[0].what}"
            divergence = singled_out(step, over[0].channel, did, ranks)
            yield Finding(NAME, Outcome.VIOLATION, step, ranks, summary, divergence)
            return


def _excesses(view: View, rank: int, share: RankStep, stated: Promise) -> Iterator[Excess]:
    stage = view.topology.coords(rank).pp
    own = [op for op in share.ops if not (op.is_model or op.called)]
    allowed = _reductions(view, rank, stated)
    by_group: dict[str, list[Op]] = {}
    for op in own:
        if op.is_collective:
            by_group.setdefault(op.enter.group, []).append(op)
    for group, ops in by_group.items():
        yield from _over(rank, group, ops, allowed.get(group, 0))
    hops_out = stated.agreements if stage + 1 < view.topology.pp else 0
    hops_in = stated.agreements if stage > 0 else 0
    pipeline = view.agreed_over(view.topology.pp_group(rank)).name
    yield from _over(rank, pipeline, [op for op in own if op.is_send], hops_out)
    yield from _over(rank, pipeline, [op for op in own if op.is_recv], hops_in)
    if stage > 0 and share.queries and not stated.followers_ask:
        asked = ",".join(dict.fromkeys(query.key for query in share.queries))
        what = f"{len(share.queries)} queries ({asked}), promised 0 on a follower"
        yield Excess(rank, "events", what)


def _reductions(view: View, rank: int, stated: Promise) -> dict[str, int]:
    """Collectives that the rank may enter in a step, by group."""
    topology = view.topology
    leads = topology.coords(rank).pp == 0
    in_stage = stated.storage + (stated.agreements if leads else 0)
    allowed = dict.fromkeys((group.name for group in view.in_stage_groups(rank)), in_stage)
    tensor_parallel = view.agreed_over(topology.tp_group(rank)).name
    if tensor_parallel in allowed:
        allowed[tensor_parallel] += stated.local
    return allowed | {view.agreed_over(GroupSpec(WORLD, ())).name: stated.world}


def _over(rank: int, channel: str, ops: list[Op], allowed: int) -> Iterator[Excess]:
    # A collective of another kind than all_reduce is in nobody's promise.
    foreign = [op for op in ops if op.is_collective and op.enter.op != "all_reduce"]
    if len(ops) <= allowed and not foreign:
        return
    kinds = "/".join(dict.fromkeys(op.enter.op for op in ops))
    chains = told_apart([op.enter.caller for op in ops])
    callers = ", ".join(dict.fromkeys(chain.split(">")[0] for chain in chains))
    promised = f"{allowed} all_reduce" if foreign else str(allowed)
    yield Excess(rank, channel, f"{len(ops)} {kinds} on {channel}, promised {promised} ({callers})")
