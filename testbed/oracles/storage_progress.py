"""An item of a storage queue that lies there for ever, on all ranks of a stage or on some alone."""

from collections.abc import Iterator
from typing import NamedTuple

from testbed.analysis.view import RankView, View

_FROM_PREFETCHES = ("prefetch-ack", "release")
_SETTLED = ("never", "error")


class Lying(NamedTuple):
    """Items of one queue of one stage. since: the step from which on the ranks of ``holding`` have
    had items and taken none; each with the number that it has. lacking: the other ranks of the
    stage, which had none from then on, and in words what they are without.
    """

    queue: str
    since: int
    holding: dict[int, int]
    lacking: dict[int, str]


def lying(view: View) -> Iterator[Lying]:
    """Items that some rank took none of for more than ``progress_within`` steps, up to the end,
    while the other ranks of its stage had none, or took none either.

    Nothing is said where a rank that has none may still get one: the run is just too short to tell.
    What other stages have is their own affair: they may own other pools.
    """
    for stage in range(view.topology.pp):
        ranks = view.stage(stage)
        for queue in sorted({name for rank in ranks for name in _last(rank)}):
            found = _lying(view, ranks, queue)
            if found is not None:
                yield found


def _lying(view: View, ranks: list[RankView], queue: str) -> Lying | None:
    since = {rank.rank: _since(rank, queue) for rank in ranks}
    holding = {rank: step for rank, step in since.items() if step is not None}
    if not holding:
        return None
    first = max(holding.values())
    if view.scenario.steps - first <= view.scenario.progress_within:
        return None
    lacking = [rank for rank in ranks if rank.rank not in holding]
    if any(_had(rank, queue, first) or _may_come(rank, queue) for rank in lacking):
        return None
    items = {rank.rank: _last(rank)[queue] for rank in ranks if rank.rank in holding}
    return Lying(queue, first, items, {rank.rank: _why(rank, queue) for rank in lacking})


def _since(rank: RankView, queue: str) -> int | None:
    """The step from which on it held items and took none, up to the end."""
    since = None
    for step, share in rank.ended_steps():
        held = share.begin.storage.get(queue, 0) if share.begin is not None else 0
        if not held or share.taken(queue):
            since = None
        elif since is None:
            since = step
    return since


def _had(rank: RankView, queue: str, since: int) -> bool:
    return any(
        step >= since
        and (share.taken(queue) or (share.end is not None and share.end.storage.get(queue, 0)))
        for step, share in rank.ended_steps()
    )


def _may_come(rank: RankView, queue: str) -> bool:
    """Whether what the rank has pending can put an item there after the end of the run."""
    if rank.final is None:
        return True
    pending = rank.final.pending
    if queue == "backup":
        return bool(pending.get("backup"))
    if queue not in _FROM_PREFETCHES:
        return False
    arrived = {key for share in rank.steps.values() for key in share.arrived}
    settled = {start.key for start in rank.starts() if start.ready in _SETTLED}
    return bool(set(pending.get("prefetch", ())) - arrived - settled)


def _last(rank: RankView) -> dict[str, int]:
    ends = [share.end for _, share in rank.ended_steps() if share.end is not None]
    return ends[-1].storage if ends else {}


def _why(rank: RankView, queue: str) -> str:
    return "never had one" if queue in _last(rank) else "has no such queue"
