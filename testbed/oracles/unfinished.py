"""Operations that nobody finished: messages without the other end, Works that nobody waited for."""

from collections.abc import Iterable, Iterator

from testbed.analysis.messages import Ends, pipes
from testbed.analysis.sides import Breach, breaches, named, singled_out
from testbed.analysis.standing import site
from testbed.analysis.view import Op, Pipe, RankView, View, Way
from testbed.model.events import Dropped, Event, Left, Raised, Settled
from testbed.model.verdict import Finding, Outcome
from testbed.oracles.offset import came_apart


def unfinished(view: View, oracle: str) -> Iterator[Finding]:
    """First the Works that were thrown away, then what a rank that came to its end left undone."""
    ranks = list(view.ranks.values())
    yield from breaches(oracle, (breach for rank in ranks for breach in _dropped(rank)))
    for pipe, ends in pipes(view).items():
        yield from _unmatched(view, oracle, pipe, ends)
    yield from breaches(oracle, (breach for rank in ranks for breach in _kept(rank)))


# Works


def _dropped(rank: RankView) -> Iterator[Breach]:
    """The first Work that was thrown away, in the step of that."""
    waited = {op.way for op in rank.ops if op.is_wait}
    unwound = set(_unwound(rank))
    ops = {op.way: op for op in rank.ops if not op.is_wait}
    lost = [
        (way, event)
        for way, event in rank.dropped.items()
        if way not in waited and way not in rank.settled and way not in unwound
    ]
    for way, event in lost[:1]:
        made = ops.get(way)
        where = f"{site(made.enter)} of step {made.step}" if made is not None else ""
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        what = (
            f"threw away the Work of its {way.op} #{way.ordinal}{where} "
            f"before anybody waited for it{more}"
        )
        yield Breach(event.step, str(way.channel(rank.rank)), rank.rank, what)


def _unwound(rank: RankView) -> Iterator[Way]:
    """Works that went with the frames of the exception which ended the rank: no fault of theirs."""
    events: Iterable[Event] = reversed(rank.record.events) if rank.raised is not None else ()
    for event in events:
        if isinstance(event, Dropped):
            yield Way.of(event)
        elif not isinstance(event, Raised | Left | Settled):
            return


def _kept(rank: RankView) -> Iterator[Breach]:
    """The first Work that nobody waited for, of a rank that came to its end."""
    if rank.final is None:
        return
    over = {op.way for op in rank.ops if op.is_wait} | rank.settled.keys() | rank.dropped.keys()
    kept = [op for op in rank.ops if op.work and not op.is_wait and op.way not in over]
    for op in kept[:1]:
        more = f" (and for {len(kept) - 1} more)" if len(kept) > 1 else ""
        what = (
            f"never waited for its {op.enter.op} #{op.enter.ordinal}{site(op.enter)} "
            f"of step {op.step}{more}"
        )
        yield Breach(rank.final.step, str(op.way.channel(rank.rank)), rank.rank, what)


# Messages


def _unmatched(view: View, oracle: str, pipe: Pipe, ends: Ends) -> Iterator[Finding]:
    """What one end of a pipe did without the other, where both came to their end and no exception
    came out of any part of it.
    """
    ranks = [view.ranks.get(rank) for rank in (pipe.src, pipe.dst)]
    if not ends.whole or any(rank is None or rank.final is None for rank in ranks):
        return
    # A thread may listen for what need not come, as long as its rank lives.
    # As when the time limit of a wait ran out: the program was told that nothing came.
    parts = {(op.rank, op.way) for op in (*ends.sends.values(), *ends.recvs.values())}
    given_up = {(op.rank, op.way) for rank in ranks if rank for op in rank.ops if op.left}
    listening = {
        (rank.rank, op.way)
        for rank in ranks
        if rank
        for thread, op in rank.standing_threads.items()
        if thread and isinstance(op, Op) and not (op.is_send or op.enter.op == "wait")
    }
    if len(ends.sends) == len(ends.recvs) or parts & (given_up | listening):
        return
    sends = [op for _, op in sorted(ends.sends.items())]
    recvs = [op for _, op in sorted(ends.recvs.items())]
    more, fewer = (sends, recvs) if len(sends) > len(recvs) else (recvs, sends)
    last = min(max((step for step, _ in rank.ended_steps()), default=-1) for rank in ranks if rank)
    apart = came_apart(sends, recvs, last, unequal=True)
    if apart is not None and apart.place < len(more):
        place, step = apart.place, apart.step
        odd = (sends, recvs)[apart.odd] if apart.odd is not None else more
    else:
        place, step, odd = len(more) - 1, more[-1].step, more
    at = more[place]
    did = {
        pipe.src: f"made {_times(len(sends), 'send')}{_which(at, more is sends, place)}",
        pipe.dst: f"made {_times(len(recvs), 'receive')}{_which(at, more is recvs, place)}",
    }
    culprit = pipe.src if odd is sends else pipe.dst
    divergence = singled_out(step, str(pipe), did, [culprit], place)
    lost = "nobody received" if more is sends else "nothing came for"
    what = f"{lost} {at.enter.op} #{place}{site(at.enter)} of rank {at.rank}, or a later one"
    if len(more) == len(fewer) + 1 and place == len(more) - 1:
        what = what.removesuffix(", or a later one")
    told = "; ".join(f"{named([rank])} {text}" for rank, text in did.items())
    order = (culprit, *(rank for rank in did if rank != culprit))
    ranks_named = order if apart is None or apart.odd is None else order[:1]
    yield Finding(
        oracle, Outcome.VIOLATION, step, ranks_named, f"{pipe}: {what}; {told}", divergence
    )


def _which(op: Op, own: bool, place: int) -> str:
    return f", #{place} in step {op.step}{site(op.enter)}" if own else ""


def _times(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
