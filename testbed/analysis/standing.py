"""Where a rank that did not finish stands, and for which other ranks it waits."""

from collections.abc import Iterator

from testbed.analysis.logical_time import channel
from testbed.analysis.sides import named
from testbed.analysis.view import Op, RankView, Standing, View
from testbed.model.events import Block, Enter, Sync, Touched
from testbed.model.wording import called_at


def waits_for(view: View, rank: RankView) -> tuple[int, ...]:
    """Ranks without which its main thread cannot go on; none where it waits in no operation, or for
    what is on its way. A rank may be named that does not exist.
    """
    wait = view.waits.get((rank.rank, 0))
    return wait.waits_for if wait is not None else ()


def in_flight(view: View, rank: RankView) -> Iterator[tuple[Op, list[int]]]:
    """Collectives that the rank entered and some members never did, oldest first, each with those
    members. What waits for them may be out of the recorder's sight.
    """
    over = {op.way for op in rank.ops if op.is_wait and op.returned is not None}
    for op in rank.ops:
        if not op.is_collective or op.way in over or op.way in rank.settled:
            continue
        missing = [
            member
            for member in rank.groups.get(op.enter.group) or view.members(op.enter.group)
            if member != rank.rank and not entered(view, member, op)
        ]
        if missing:
            yield op, missing


def entered(view: View, member: int, op: Op) -> Op | None:
    """The member's part of a collective, if it came to it."""
    if member not in view.ranks:
        return None
    at = (op.enter.group, op.enter.ordinal)
    return next(
        (
            other
            for other in reversed(view.ranks[member].ops)
            if other.is_collective and (other.enter.group, other.enter.ordinal) == at
        ),
        None,
    )


def site(of: Enter | Touched) -> str:
    """`` (writing_check>pass_down at agreement.py:86)``: the functions that called, and where."""
    where = called_at(of.caller, of.site)
    return f" ({where})" if where else ""


def told_op(op: Op) -> str:
    """``recv #3 of pp[tp0] 0->1 tag 7 (writing_check at mine.py:3)``."""
    return f"{op.enter.op} #{op.enter.ordinal} of {channel(op)}{site(op.enter)}"


def told(view: View, rank: RankView) -> str:
    """Where the rank stands: ``waits in recv #3 of pp[tp0] 0->1 (agree) for rank 0, step 3``."""
    if rank.done:
        return "has finished"
    if rank.final is not None:
        return "has run all its steps"
    if rank.raised is not None and not rank.raised.inside:
        return f"raised {rank.raised.type} in step {rank.step}"
    if rank.record.exit == "paused":
        return f"is stopped by somebody's SIGSTOP, {_place(view, rank)}"
    return _place(view, rank)


def _place(view: View, rank: RankView) -> str:
    if rank.standing is not None:
        return _stands(view, rank, rank.standing)
    threads = [
        f"its thread {thread} {_stands(view, rank, at, thread)}"
        for thread, at in sorted(rank.standing_threads.items())
    ]
    return ", ".join([f"is not inside a recorded operation, step {rank.step}", *threads])


def _stands(view: View, rank: RankView, at: Standing, thread: int = 0) -> str:
    step = f", step {at.step}" if thread == 0 else ""
    if isinstance(at, Op):
        wait = view.waits.get((rank.rank, thread))
        others = wait.waits_for if wait is not None else ()
        for_whom = f" for {named(others)}" if others else ""
        return f"waits in {told_op(at)}{for_whom}{step}"
    if isinstance(at, Sync):
        return f"waits for the event of {at.key}{step}"
    assert isinstance(at, Block)
    return f"waits for an item of its empty {at.queue} queue{step}"


def last_made(rank: RankView) -> str:
    """``, its last operation was all_reduce #3 of tp[pp0] (check at mine.py:9), step 2``."""
    made = [op for op in rank.ops if not op.is_wait and op is not rank.standing]
    if not made:
        return ", it made no operation at all"
    return f", its last operation was {told_op(made[-1])}, step {made[-1].step}"
