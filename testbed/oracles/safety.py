"""safety: no transfer is completed before it is over, and no leader-stage rank is run ahead of."""

from collections.abc import Iterable, Iterator

from testbed.analysis.sides import Breach, breaches
from testbed.analysis.view import QUEUES, RankView, View, acks
from testbed.model.verdict import Finding

NAME = "safety"


def check(view: View) -> Iterable[Finding]:
    """A completed transfer's own event was ready or waited for; and no rank completes more of a
    queue in a step than every leader-stage rank had ready, from the head on, when the step began.

    Events scripted in milliseconds may become ready between the start of the step and the count:
    they are taken as ready. Leader-stage ranks that did not reach the step are ignored. What a
    scripted write-back completes is exempt: it waits for each event instead. The findings are of
    the first step of each rank that completes too early, and of each queue in which some rank runs
    ahead of a leader.
    """
    return breaches(NAME, _broken(view))


def _broken(view: View) -> Iterator[Breach]:
    for rank in view.ranks.values():
        yield from _too_early(rank)
    for queue in QUEUES:
        yield from _ahead(view, queue)


def _too_early(rank: RankView) -> Iterator[Breach]:
    for step, share in rank.steps.items():
        for done in share.completes:
            if not done.ready:
                what = f"completed {done.key} before its own event was ready"
                yield Breach(step, done.queue, rank.rank, what)
                return


def _ahead(view: View, queue: str) -> Iterator[Breach]:
    leaders = [(leader, _in_milliseconds(leader, queue)) for leader in view.stage(0)]
    for step in view.steps:
        ready = {
            leader.rank: count
            for leader, soft in leaders
            if (count := _ready_prefix(leader, step, queue, soft)) is not None
        }
        if not ready:
            continue
        slowest = min(ready, key=lambda rank: (ready[rank], rank))
        ahead = False
        for rank in view.ranks.values():
            share = rank.at(step)
            completed = [key for key in share.completed(queue) if key not in share.written_back]
            if len(completed) > ready[slowest]:
                first = completed[ready[slowest]]
                what = f"completed {first}, which is not ready on leader-stage rank {slowest}"
                yield Breach(step, queue, rank.rank, what)
                ahead = True
        if ahead:
            return


def _in_milliseconds(rank: RankView, queue: str) -> frozenset[str]:
    return frozenset(
        start.key
        for start in rank.starts()
        if start.queue == queue and start.ready.startswith("ms")
    )


def _ready_prefix(rank: RankView, step: int, queue: str, soft: frozenset[str]) -> int | None:
    begin = rank.at(step).begin
    if begin is None:
        return None
    held = acks(begin, queue)
    for place, (key, ready) in enumerate(held):
        if not ready and key not in soft:
            return place
    return len(held)
