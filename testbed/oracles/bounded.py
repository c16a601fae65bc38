"""bounded: send list, queues and pending maps stay within a bound over any number of steps."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from testbed.analysis.sides import Breach, breaches
from testbed.analysis.view import QUEUES, RankStep, RankView, View, Way
from testbed.model.verdict import Finding
from testbed.oracles.pairing import SAME_SITE

NAME = "bounded"

MAX_SENDS = 4
"""Sends left over from one step: each agreement leaves one, and no protocol has more than writes,
loads, storage and one to spare. They are waited for at the start of the next step. What a scenario
has the loop call besides the check may leave one more each."""


def check(view: View) -> Iterable[Finding]:
    """After each step a rank holds no more sends than one step makes, and no more ACKs and no more
    pending entries than transfers it started and has not completed. The first step over a bound is
    reported, per rank and bound.

    What a rank holds is what it says of itself. Where it promises ``same-site``, and with it the
    traffic of one agreement after the other, its sends are counted from the record as well: those
    whose Work it has neither waited for nor found to be over. Other programs may keep as many Works
    as they like, if they wait for them in the end, which ``conservation`` sees to.
    """
    return breaches(NAME, _first_over(view))


def _first_over(view: View) -> Iterator[Breach]:
    for rank in view.ranks.values():
        told: set[str] = set()
        unwaited = _unwaited(rank) if view.record.promises.get(SAME_SITE) is True else {}
        for step, channel, what in _over(rank, unwaited):
            if channel not in told:
                told.add(channel)
                yield Breach(step, channel, rank.rank, what)


def _unwaited(rank: RankView) -> dict[int, int]:
    """Step -> sends of the subject's main thread that are not waited for at its end."""
    begun: Counter[int] = Counter()
    over: Counter[int] = Counter()
    mine = {op.way for op in rank.ops if op.is_send and op.work and op.has_step and not op.is_model}
    ended: set[Way] = set()
    for op in rank.ops:
        if op.way in mine and op.is_send:
            begun[op.step] += 1
    waits = [(op.way, op.step) for op in rank.ops if op.is_wait and op.returned is not None]
    for way, step in (*waits, *((way, event.step) for way, event in rank.settled.items())):
        if way in mine and way not in ended:
            ended.add(way)
            over[step] += 1
    held, found = 0, {}
    for step in sorted(rank.steps):
        held += begun[step] - over[step]
        found[step] = held
    return found


def _over(rank: RankView, unwaited: Mapping[int, int]) -> Iterator[tuple[int, str, str]]:
    in_flight = dict.fromkeys(QUEUES, 0)
    for step, share in rank.steps.items():
        for queue in QUEUES:
            in_flight[queue] += _moved(share, queue)
        if share.end is None:
            continue
        most = MAX_SENDS + len(share.answers)
        sends = max(share.end.sends, unwaited.get(step, 0))
        if sends > most:
            yield step, "sends", f"keeps {sends} sends, at most {most} may be left"
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
