"""How a run ended that did not finish: the root of a crash, a deadlock or a hang, and what only
followed from it.
"""

import signal
from typing import NamedTuple

from testbed.oracles import standing
from testbed.oracles.sides import named, singled_out
from testbed.oracles.view import Op, RankView, View
from testbed.trace.events import Raised
from testbed.trace.waits import prove
from testbed.verdict import Divergence, Outcome

# What a broken connection says: the peer left, and this is its echo.
_ECHOES = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "timed out",
)


class Ending(NamedTuple):
    """The outcome, the step and ranks of its root, and notes on the ranks that followed."""

    outcome: Outcome
    step: int
    ranks: tuple[int, ...]
    summary: str
    divergence: Divergence
    notes: tuple[str, ...]


def ending(view: View) -> Ending | None:
    """None for a run in which every rank came to its end.

    A rank that died, or raised for a reason of its own, is the root of all that stood still after
    it. Exceptions out of torch.distributed calls say less: while a stuck run is being stopped, the
    ranks not ended yet raise about their lost connections.
    """
    if view.all_done:
        return None
    if view.record.ended == "broken" or any(_by_itself(rank) for rank in view.ranks.values()):
        return _crash(view)
    return _deadlock(view) if view.record.ended == "deadlock" else _hang(view)


def _crash(view: View) -> Ending:
    broken = [rank for rank in view.ranks.values() if rank.record.exit in ("raised", "signal")]
    # What came out of a torch.distributed call may be the echo of another rank's end, above all
    # when it speaks of a connection.
    own = [rank for rank in broken if _by_itself(rank)]
    loud = [rank for rank in broken if not _is_echo(rank)]
    candidates = own or loud or broken
    first = min(candidates, key=lambda rank: (rank.step, rank.rank))
    roots = tuple(
        rank.rank
        for rank in candidates
        if rank.step == first.step and _cause(rank) == _cause(first)
    )
    did = {rank.rank: _fate(view, rank) for rank in view.ranks.values()}
    notes = tuple(
        f"rank {rank} {what}: collateral"
        for rank, what in did.items()
        if rank not in roots and not view.ranks[rank].done
    )
    summary = f"{named(roots)} {did[first.rank]}"
    divergence = singled_out(first.step, _channel(first), did, roots)
    return Ending(Outcome.CRASH, first.step, roots, summary, divergence, notes)


def _by_itself(rank: RankView) -> bool:
    """Whether it died by a signal or raised outside any torch.distributed call."""
    return rank.record.exit in ("raised", "signal") and not _inside(rank)


def _inside(rank: RankView) -> str:
    return rank.raised.inside if rank.record.exit == "raised" and rank.raised else ""


def _is_echo(rank: RankView) -> bool:
    message = rank.raised.message.lower() if rank.raised is not None else ""
    return any(echo in message for echo in _ECHOES)


def _cause(rank: RankView) -> str:
    if rank.record.exit == "signal":
        return f"died by {_signal_name(rank.record.signal)}"
    if rank.raised is None:
        last = rank.record.output.strip().splitlines()[-1:]
        return " ".join(["raised an exception that left no event", *last])
    return f"raised {_exception(rank.raised)}"


def _exception(raised: Raised) -> str:
    message = raised.message.strip().splitlines()
    return f"{raised.type}: {message[0]}" if message else raised.type


def _fate(view: View, rank: RankView) -> str:
    if rank.record.exit in ("raised", "signal"):
        inside = f" inside {_inside(rank)}" if _inside(rank) else ""
        return f"{_cause(rank)}{inside}, step {rank.step}"
    return standing.told(view, rank)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _deadlock(view: View) -> Ending:
    # What a rank raised while it was being stopped is no part of the standstill.
    seen = {
        rank.rank: [event for event in rank.record.events if not isinstance(event, Raised)]
        for rank in view.ranks.values()
    }
    proof = prove(seen, view.topology)
    if proof is None:
        # The controller proved it on the ranks as they were; a record cut later may say less.
        return _hang(view)._replace(outcome=Outcome.DEADLOCK)
    did = _standings(view)
    step = min(wait.step for wait in proof.cycle)
    notes = tuple(f"{wait}: behind the cycle" for wait in proof.behind)
    # Where the chain ends at ranks that have left, these are the odd ones, not those they left.
    odd = proof.ended or proof.ranks
    divergence = singled_out(step, _channel(view.ranks[proof.ranks[0]]), did, odd)
    return Ending(Outcome.DEADLOCK, step, proof.ranks, proof.told(), divergence, notes)


def _hang(view: View) -> Ending:
    inside = [rank for rank in view.ranks.values() if not rank.done and rank.final is None]
    waiting = inside or [rank for rank in view.ranks.values() if not rank.done]
    # Who stands in no operation is waited for, not waiting: an event, a local queue, a busy loop.
    # Else the root is who waits for a rank that left; else nobody can be told from the others.
    outside = [rank for rank in waiting if not isinstance(rank.standing, Op)]
    left = view.ranks.keys() - {rank.rank for rank in waiting}
    left_behind = [rank for rank in waiting if left.intersection(standing.waits_for(view, rank))]
    roots = outside or left_behind or waiting
    did = _standings(view)
    first = min(roots, key=lambda rank: (rank.step, rank.rank))
    ranks = tuple(rank.rank for rank in roots)
    behind = [rank.rank for rank in waiting if rank.rank not in ranks]
    stands = "; ".join(f"rank {rank} {did[rank]}" for rank in ranks)
    summary = f"{stands}; behind: {named(behind)}" if behind else stands
    notes = tuple(f"rank {rank} {did[rank]}" for rank in behind)
    divergence = singled_out(first.step, _channel(first), did, ranks)
    return Ending(Outcome.HANG, first.step, ranks, summary, divergence, notes)


def _standings(view: View) -> dict[int, str]:
    return {rank.rank: standing.told(view, rank) for rank in view.ranks.values()}


def _channel(rank: RankView) -> str:
    return rank.standing.enter.group if isinstance(rank.standing, Op) else "rank"
