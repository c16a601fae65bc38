"""stage-local: storage counts of one stage never reach another."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from testbed.analysis.sides import named, singled_out
from testbed.analysis.view import RankStep, RankView, View
from testbed.model.verdict import Finding, Outcome

NAME = "stage-local"


class Seen(NamedTuple):
    """One rank, one step, one queue. most: all that can have been there, None if unknown."""

    rank: int
    began: bool
    held: int
    taken: int
    most: int | None
    blocked: bool
    closed: bool


def check(view: View) -> Iterable[Finding]:
    """In each step every rank of a stage takes the MIN of what the ranks of that stage hold.

    Checked where the subject promises it, or the scenario claims it. The true MIN lies between the
    length of the queue at the start of the step and that length plus what came during the step,
    which follows from the items taken and left. A wait for an item of an empty queue is a count
    greater than the queue.
    """
    if not (view.record.promises.get(NAME) or NAME in view.scenario.claims):
        return
    for stage in range(view.topology.pp):
        yield from _first(view.stage(stage), view.steps)


def _first(ranks: list[RankView], steps: range) -> Iterator[Finding]:
    for step in steps:
        shares = {rank.rank: rank.at(step) for rank in ranks}
        if all(share.begin is None for share in shares.values()):
            return
        for queue in _queues(shares.values()):
            found = _judge(step, queue, [_seen(r, s, queue) for r, s in shares.items()])
            if found is not None:
                yield found
                return


def _queues(shares: Iterable[RankStep]) -> list[str]:
    names: dict[str, None] = {}
    for share in shares:
        names |= dict.fromkeys(share.begin.storage if share.begin else ())
        names |= dict.fromkeys(take.queue for take in share.takes)
        names |= dict.fromkeys(share.end.storage if share.end else ())
        names |= dict.fromkeys(block.queue for block in share.blocks)
    return list(names)


def _seen(rank: int, share: RankStep, queue: str) -> Seen:
    held = share.begin.storage.get(queue, 0) if share.begin else 0
    taken = share.taken(queue)
    # What storage brought while the rank waited for it was not there when the stage agreed.
    waited = {sync.key for sync in share.syncs if sync.stall}
    there = sum(take.queue == queue and take.key not in waited for take in share.takes)
    most = None if share.end is None else there + share.end.storage.get(queue, 0)
    blocked = any(block.queue == queue for block in share.blocks)
    return Seen(rank, share.begin is not None, held, taken, most, blocked, share.end is not None)


def _judge(step: int, queue: str, stage: list[Seen]) -> Finding | None:
    # A rank that never came here leaves its part of the MIN unknown: then no floor is known either.
    least = min(one.held for one in stage) if all(one.began for one in stage) else 0
    # The MIN can at most be the smallest of what each can have held; unknown binds nothing.
    most = min((max(one.held, one.most) for one in stage if one.most is not None), default=None)
    odd = [
        one
        for one in stage
        if one.blocked
        or (most is not None and one.taken > most)
        or (one.closed and one.taken < least)
    ]
    if not odd:
        return None
    did = {one.rank: _told(one) for one in stage}
    ranks = tuple(one.rank for one in odd)
    summary = f"{queue}: {named(ranks)} {_told(odd[0])}; the stage's own MIN is {least}"
    divergence = singled_out(step, queue, did, ranks)
    return Finding(NAME, Outcome.VIOLATION, step, ranks, summary, divergence)


def _told(one: Seen) -> str:
    if one.blocked:
        return f"held {one.held} and had to take more"
    return f"held {one.held} and took {one.taken}"
