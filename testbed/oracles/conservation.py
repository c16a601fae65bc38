"""conservation: at the end of a rank's loop its books balance, and nothing was completed twice."""

from collections import Counter
from collections.abc import Iterable, Iterator

from testbed.analysis.sides import Breach, breaches
from testbed.analysis.view import QUEUES, RankView, View
from testbed.model.events import End, Final
from testbed.model.verdict import Finding
from testbed.oracles.unfinished import unfinished

NAME = "conservation"


def check(view: View) -> Iterable[Finding]:
    """Every page is free, in the tree or in flight; every lock is explained by something pending;
    no send is outstanding after the last drain; a pending map is empty exactly when its queue is;
    and no transfer is completed more often than it was started.

    Something pending explains its lock and its pages even if it can never be completed, because the
    peers never had that transfer. Its rank's books balance, and a sound protocol must leave it
    pending: ``progress`` names it, and what is kept for good, as ``degraded``.

    Every message that was sent was received, every receive that was posted got one, and every Work
    was waited for, polled until it was over, or left to its future; the model's traffic included.

    Balances are drawn up from ranks that came to their end. What was completed, and a Work that was
    thrown away, is judged on all.
    """
    yield from breaches(NAME, _broken(view))
    yield from unfinished(view, NAME)


def _broken(view: View) -> Iterator[Breach]:
    for rank in view.ranks.values():
        yield from _completed_twice(rank)
        if rank.final is not None:
            for channel, what in _unbalanced(rank, rank.final):
                yield Breach(rank.final.step, channel, rank.rank, what)


def _completed_twice(rank: RankView) -> Iterator[Breach]:
    balance: Counter[tuple[str, str]] = Counter()
    for step, share in rank.steps.items():
        # A step's transfers are enqueued before its protocol runs.
        balance.update((start.queue, start.key) for start in share.starts)
        for done in share.completes:
            balance[done.queue, done.key] -= 1
            if balance[done.queue, done.key] < 0:
                what = f"completed {done.key} more often than it was started"
                yield Breach(step, done.queue, rank.rank, what)
                return


def _unbalanced(rank: RankView, final: Final) -> Iterator[tuple[str, str]]:
    for pool, books in (("device pool", final.device), ("host pool", final.host)):
        known = {place: books.get(place, 0) for place in ("free", "tree", "flight")}
        if sum(known.values()) != books.get("total", 0):
            parts = " + ".join(f"{pages} {place}" for place, pages in known.items())
            yield pool, f"has {books.get('total', 0)} pages but accounts for {parts}"
    if final.locks != final.explained:
        yield (
            "locks",
            f"holds [lock_ref, host_lock_ref] {final.locks}, "
            f"what is pending explains {final.explained}",
        )
    if final.sends:
        yield "sends", f"has {final.sends} outstanding sends after the last drain"
    ends = [share.end for _, share in rank.ended_steps()]
    last = ends[-1] if ends else None
    if last is not None:
        for queue in QUEUES:
            yield from _orphans(queue, last, final)


def _orphans(queue: str, last: End, final: Final) -> Iterator[tuple[str, str]]:
    held = last.write if queue == "write" else last.load
    pending = final.pending.get(queue, [])
    if pending and not held:
        yield f"pending {queue}", f"waits for {','.join(pending)}, but its ACK queue is empty"
    if held and not pending:
        yield f"pending {queue}", f"has ACKs of {','.join(held)} that nothing is pending for"
