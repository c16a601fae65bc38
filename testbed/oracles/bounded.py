"""bounded: send list, queues and pending maps stay within a bound over any number of steps."""

from collections.abc import Iterable, Iterator

from testbed.oracles.sides import Breach, breaches
from testbed.oracles.view import QUEUES, RankStep, RankView, View
from testbed.verdict import Finding

NAME = "bounded"

MAX_SENDS = 4
"""Sends left over from one step: each agreement leaves one, and no protocol has more than writes,
loads, storage and one to spare. They are waited for at the start of the next step. What a scenario
has the loop call besides the check may leave one more each."""


def check(view: View) -> Iterable[Finding]:
    """After each step a rank holds no more sends than one step makes, and no more ACKs and no more
    pending entries than transfers it started and has not completed. The first step over a bound
    is told, per rank and bound."""
    return breaches(NAME, _first_over(view))


def _first_over(view: View) -> Iterator[Breach]:
    for rank in view.ranks.values():
        told: set[str] = set()
        for step, channel, what in _over(rank):
            if channel not in told:
                told.add(channel)
                yield Breach(step, channel, rank.rank, what)


def _over(rank: RankView) -> Iterator[tuple[int, str, str]]:
    in_flight = dict.fromkeys(QUEUES, 0)
    for step, share in rank.steps.items():
        for queue in QUEUES:
            in_flight[queue] += _moved(share, queue)
        if share.end is None:
            continue
        most = MAX_SENDS + len(share.answers)
        if share.end.sends > most:
            yield step, "sends", f"keeps {share.end.sends} sends, at most {most} may be left"
        lengths = {
            ("write", "write queue"): len(share.end.write),
            ("load", "load queue"): len(share.end.load),
            ("write", "pending writes"): len(share.end.pending_write),
            ("load", "pending loads"): len(share.end.pending_load),
        }
        for (queue, channel), length in lengths.items():
            if length > in_flight[queue]:
                what = f"keeps {length} entries with {in_flight[queue]} transfers in flight"
                yield step, channel, what


def _moved(share: RankStep, queue: str) -> int:
    return sum(start.queue == queue for start in share.starts) - len(share.completed(queue))
