"""agreement: after each step all ranks have completed the same transfers, by identity and order."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from testbed.analysis.sides import difference, diverged
from testbed.analysis.view import QUEUES, RankStep, RankView, View
from testbed.model.verdict import Divergence, Finding

NAME = "agreement"


class Share(NamedTuple):
    """What one rank did in a step, in order. closed: it finished the step, no more will come."""

    items: list[str]
    closed: bool


def check(view: View) -> Iterable[Finding]:
    """Requests, evictions, completed writes and loads of a step, what prefetch checks said and
    brought, and the trees after it, are equal.

    A rank cut short in the step is held to what it did, and to one thing more: an ACK that others
    completed in this step must at least have been in its queue. The first difference of each kind
    is told, in the order in which a step runs: admission, eviction, protocol, tree.
    """
    yield from _first(view, "requests", "admitted", _requests)
    for where in ("device", "host"):
        yield from _first(view, f"evict {where}", "evicted", partial(_evicted, where))
    for queue in QUEUES:
        yield from _first_completion(view, queue)
    yield from _first(view, "prefetch-check", "heard", _answers)
    yield from _first(view, "prefetch", "completed", lambda share: share.completed("prefetch"))
    yield from _first_tree(view)


def _answers(share: RankStep) -> list[str]:
    # What a load-back poll says is a rank's own: who asks it has to agree on it.
    checks = (one for one in share.answers if one.call == "prefetch-check")
    return [f"{one.key} is {'over' if one.answer == 'yes' else 'under way'}" for one in checks]


def _requests(share: RankStep) -> list[str]:
    return [
        f"{one.key} ({one.device_hit} pages on device, {one.host_hit} on host, {one.computed} new)"
        for one in share.requests
    ]


def _evicted(where: str, share: RankStep) -> list[str]:
    return [key for evict in share.evicts if evict.where == where for key in evict.keys]


def _shares(view: View, step: int, items: Callable[[RankStep], list[str]]) -> dict[int, Share]:
    return {
        rank.rank: Share(items(rank.steps[step]), rank.steps[step].end is not None)
        for rank in view.ranks.values()
        if step in rank.steps
    }


def _first(
    view: View, channel: str, verb: str, items: Callable[[RankStep], list[str]]
) -> Iterator[Finding]:
    for step in view.steps:
        shares = _shares(view, step, items)
        place = _first_unequal(shares)
        if place is not None:
            did = _did(shares, place, verb)
            yield difference(NAME, diverged(step, channel, place, did))
            return


def _first_unequal(shares: dict[int, Share]) -> int | None:
    """First place where two ranks differ for certain; an open share says nothing past its end."""
    longest = max((len(share.items) for share in shares.values()), default=0)
    return next((place for place in range(longest) if len(_at(shares, place)) > 1), None)


def _at(shares: dict[int, Share], place: int) -> set[str | None]:
    return {
        share.items[place] if place < len(share.items) else None
        for share in shares.values()
        if share.closed or place < len(share.items)
    }


def _did(shares: dict[int, Share], place: int, verb: str) -> dict[int, str]:
    nothing = f"{verb} nothing more" if place else f"{verb} nothing"
    return {
        rank: f"{verb} {share.items[place]}" if place < len(share.items) else nothing
        for rank, share in shares.items()
        if share.closed or place < len(share.items)
    }


def _first_completion(view: View, queue: str) -> Iterator[Finding]:
    for step in view.steps:
        shares = _shares(view, step, lambda share: share.completed(queue))
        divergence = _unequal(shares, step, queue) or _cannot(view, shares, step, queue)
        if divergence is not None:
            yield difference(NAME, divergence)
            return


def _unequal(shares: dict[int, Share], step: int, queue: str) -> Divergence | None:
    place = _first_unequal(shares)
    if place is None:
        return None
    return diverged(step, queue, place, _did(shares, place, "completed"))


def _cannot(view: View, shares: dict[int, Share], step: int, queue: str) -> Divergence | None:
    """A rank that was cut short in the step could not have completed what the others did."""
    longest = max((share.items for share in shares.values()), key=len, default=[])
    for place, key in enumerate(longest):
        lacking = {
            rank: _lack(view.ranks[rank], step, queue, key)
            for rank, share in shares.items()
            if not share.closed
            and place >= len(share.items)
            and _lacks(view.ranks[rank], step, queue, key)
        }
        if lacking:
            return diverged(step, queue, place, _did(shares, place, "completed") | lacking)
    return None


def _lacks(rank: RankView, step: int, queue: str, key: str) -> bool:
    if rank.steps[step].begin is None or key in rank.steps[step].held(queue):
        return False
    return not any(key in share.completed(queue) for share in rank.steps.values())


def _lack(rank: RankView, step: int, queue: str, key: str) -> str:
    held = rank.steps[step].held(queue)
    holds = f"holds {','.join(held)}" if held else "is empty"
    return f"no ACK of {key} to complete, its queue {holds}"


def _first_tree(view: View) -> Iterator[Finding]:
    for step in view.steps:
        trees = {
            rank.rank: share.end.tree
            for rank in view.ranks.values()
            if (share := rank.at(step)).end is not None
        }
        if len(set(trees.values())) > 1:
            did = {rank: f"has tree {tree & (1 << 64) - 1:016x}" for rank, tree in trees.items()}
            yield difference(NAME, diverged(step, "tree", -1, did))
            return
