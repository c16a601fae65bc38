"""budget: operations per step and role are no more than the protocol promises."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.oracles.sides import named, singled_out, told_apart
from testbed.oracles.view import Op, RankStep, View
from testbed.topology import Topology
from testbed.verdict import Finding, Outcome

NAME = "budget"
CLAIM = "budget:"


class Promise(NamedTuple):
    """Per step with more than one stage. agreements: each one all_reduce on every group of the
    leader stage, one send and one receive per pipeline hop. storage: with storage on, reductions
    of the storage counts on the groups of every stage. No event is asked on a follower."""

    agreements: int
    storage: int


PROTOCOLS = {
    "separate": Promise(agreements=2, storage=1),
    "batched": Promise(agreements=1, storage=1),
    "fused": Promise(agreements=1, storage=0),
}
"""By SGLang release: separate 0.5.13 to 0.5.18, batched 0.5.19 (with storage as its description
says), fused from 0.5.20 on."""
ONE_STAGE = Promise(agreements=1, storage=0)
"""With one stage one vector carries everything, whatever the protocol."""


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
    if topology.pp == 1:
        return ONE_STAGE
    stated = PROTOCOLS[protocol]
    return stated if storage else stated._replace(storage=0)


def check(view: View) -> Iterable[Finding]:
    """Each rank keeps to the budget that the subject promises and to those the scenario claims.

    An upper bound: a rank that does less shows up elsewhere. The first step over budget is told,
    with all ranks over it.
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
    in_stage = {group.name for group in view.in_stage_groups(rank)}
    reductions = stated.storage + (stated.agreements if stage == 0 else 0)
    by_group: dict[str, list[Op]] = {}
    for op in share.ops:
        if op.is_collective:
            by_group.setdefault(op.enter.group, []).append(op)
    for group, ops in by_group.items():
        yield from _over(rank, group, ops, reductions if group in in_stage else 0)
    hops_out = stated.agreements if stage + 1 < view.topology.pp else 0
    hops_in = stated.agreements if stage > 0 else 0
    sends = [op for op in share.ops if op.is_send]
    recvs = [op for op in share.ops if op.is_recv]
    pipeline = view.topology.pp_group(rank).name
    yield from _over(rank, pipeline, sends, hops_out)
    yield from _over(rank, pipeline, recvs, hops_in)
    if stage > 0 and share.queries:
        asked = ",".join(dict.fromkeys(query.key for query in share.queries))
        what = f"{len(share.queries)} queries ({asked}), promised 0 on a follower"
        yield Excess(rank, "events", what)


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
