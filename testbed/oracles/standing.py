"""Where a rank that did not finish stands, and for which other ranks it waits."""

from testbed.oracles.sides import named
from testbed.oracles.view import Op, RankView, View
from testbed.trace.events import Block, Enter, Sync, Touched


def waits_for(view: View, rank: RankView) -> tuple[int, ...]:
    """Ranks without which it cannot go on; none where it waits in no operation.

    A collective waits for the members that have not entered that ordinal, a message (or its
    ``wait``) for the other end, unless that has entered its part already.
    """
    op = rank.standing
    if not isinstance(op, Op):
        return ()
    enter = op.enter
    if enter.tag >= 0:
        return () if enter.peer < 0 or _met(view, op) else (enter.peer,)
    return tuple(
        member
        for member in rank.groups.get(enter.group) or view.members(enter.group)
        if member != rank.rank and not _entered(view, member, enter.group, enter.ordinal)
    )


def _met(view: View, op: Op) -> bool:
    """Whether the other end has entered its part of it."""
    sends = op.is_send or op.enter.op == "wait"
    other_end = view.ranks.get(op.enter.peer)
    return other_end is not None and any(
        (other.is_recv if sends else other.is_send)
        and other.pipe == op.pipe
        and other.enter.ordinal == op.enter.ordinal
        for other in reversed(other_end.ops)
    )


def _entered(view: View, member: int, group: str, ordinal: int) -> bool:
    if member not in view.ranks:
        return False
    return any(
        op.is_collective and op.enter.group == group and op.enter.ordinal == ordinal
        for op in reversed(view.ranks[member].ops)
    )


def site(of: Enter | Touched) -> str:
    """`` (pass_down at agreement.py:86)``: the function that called, and where."""
    caller = of.caller.rpartition(">")[2]
    where = f"{caller} at {of.site}" if caller and of.site else caller
    return f" ({where})" if where else ""


def told(view: View, rank: RankView) -> str:
    """Where the rank stands: ``waits in recv #3 of pp[tp0] (agree) for rank 0, step 3``."""
    if rank.done:
        return "has finished"
    if rank.final is not None:
        return "has finished its loop but did not leave"
    if rank.raised is not None and not rank.raised.inside:
        return f"raised {rank.raised.type} in step {rank.step}"
    if rank.record.exit == "paused":
        return f"is stopped by somebody's SIGSTOP, {_place(view, rank)}"
    return _place(view, rank)


def _place(view: View, rank: RankView) -> str:
    at = rank.standing
    if isinstance(at, Op):
        what = f"waits in {at.enter.op} #{at.enter.ordinal} of {at.enter.group}{site(at.enter)}"
        others = waits_for(view, rank)
        for_whom = f" for {named(others)}" if others else ""
        return f"{what}{for_whom}, step {at.step}"
    if isinstance(at, Sync):
        return f"waits for the event of {at.key}, step {at.step}"
    if isinstance(at, Block):
        return f"waits for an item of its empty {at.queue} queue, step {at.step}"
    return f"stands outside any operation, step {rank.step}"
