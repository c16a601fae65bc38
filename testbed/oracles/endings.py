"""How a run ended that did not finish: the root of a crash, a deadlock or a hang, and what only
followed from it.
"""

import re
import signal
from dataclasses import replace
from typing import NamedTuple

from testbed.analysis import standing
from testbed.analysis.logical_time import channel, depths
from testbed.analysis.sides import named, singled_out
from testbed.analysis.view import Op, RankView, View
from testbed.analysis.wait_graph import Deadlock, Wait, awaited_op
from testbed.model.events import Block, Raised, Sync
from testbed.model.topology import told_tag
from testbed.model.verdict import Divergence, Outcome
from testbed.oracles.pairing import SAME_SITE

# What a broken connection says: the peer left, and this is its echo.
_ECHOES = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "timed out",
    "remote process exited",  # NCCL's words
)
_SOURCE_LINE = re.compile(r"^\[\S+:\d+\] ")


class _Place(NamedTuple):
    channel: str
    ordinal: int
    op: Op | None = None


class Ending(NamedTuple):
    """The outcome, the step and ranks of its root, and notes on the ranks that followed. stuck: the
    step in which it came to light, if that is a later one.
    """

    outcome: Outcome
    step: int
    ranks: tuple[int, ...]
    summary: str
    divergence: Divergence
    notes: tuple[str, ...]
    stuck: int = -1

    @property
    def until(self) -> int:
        """Last step whose violations are no consequence of it."""
        return max(self.step, self.stuck)


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
    loud = [rank for rank in broken if not is_echo(rank)]
    candidates = own or loud or broken
    first = min(candidates, key=lambda rank: (rank.step, rank.rank))
    roots = tuple(
        rank.rank
        for rank in candidates
        if rank.step == first.step and _cause(rank) == _cause(first)
    )
    did = {
        rank.rank: _echo(rank) if rank.rank not in roots and is_echo(rank) else _fate(view, rank)
        for rank in view.ranks.values()
    }
    notes = tuple(
        f"rank {rank} {what}: collateral"
        for rank, what in did.items()
        if rank not in roots and view.ranks[rank].final is None
    )
    summary = f"{named(roots)} {did[first.rank]}"
    divergence = _at(view, first, did, roots)
    return Ending(Outcome.CRASH, first.step, roots, summary, divergence, notes)


def _by_itself(rank: RankView) -> bool:
    """Whether it died by a signal or raised outside any torch.distributed call."""
    return rank.record.exit in ("raised", "signal") and not _inside(rank)


def _inside(rank: RankView) -> str:
    return rank.raised.inside if rank.record.exit == "raised" and rank.raised else ""


def is_echo(rank: RankView) -> bool:
    """Whether what it raised speaks of a lost connection."""
    message = rank.raised.message.lower() if rank.raised is not None else ""
    return any(echo in message for echo in _ECHOES)


def _cause(rank: RankView) -> str:
    if rank.record.exit == "signal":
        return f"died by {signal_name(rank.record.signal)}"
    if rank.raised is None:
        status = f" with status {rank.record.status}" if rank.record.status >= 0 else ""
        last = rank.record.output.strip().splitlines()[-1:]
        return ": ".join([f"ended its process{status} without raising", *last])
    return f"raised {_exception(rank.raised)}"


def _exception(raised: Raised) -> str:
    message = raised.message.strip().splitlines()
    # gloo puts its own source line before, and advice behind what it has to say.
    told = _SOURCE_LINE.sub("", message[0]).split(". This is typically")[0] if message else ""
    return f"{raised.type}: {told}" if told else raised.type


def _echo(rank: RankView) -> str:
    """Of a rank that only noticed another one's end: gloo's own words would name no rank."""
    return f"lost its connection inside {_inside(rank)}, step {rank.step}"


def _fate(view: View, rank: RankView) -> str:
    if rank.record.exit in ("raised", "signal"):
        inside = f" inside {_inside(rank)}" if _inside(rank) else ""
        return f"{_cause(rank)}{inside}{_raised_at(rank)}, step {rank.step}"
    return standing.told(view, rank)


def _raised_at(rank: RankView) -> str:
    """`` (writing_check at minimal.py:108)``: the innermost frame of the subject's code."""
    raised = rank.raised if rank.record.exit == "raised" else None
    for function, site, is_subjects in raised.frames if raised else ():
        if is_subjects:
            return f" ({function} at {site})"
    return ""


def signal_name(number: int) -> str:
    """``SIGKILL``, ``signal 77``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _deadlock(view: View) -> Ending:
    proof = view.deadlock
    if proof is None:
        # The controller proved it on the ranks as they were; a record cut later may say less.
        return _hang(view)._replace(outcome=Outcome.DEADLOCK)
    depth = depths(view)
    nodes = [(wait.rank, wait.thread) for wait in proof.cycle]
    holder = dict(zip(nodes, (*proof.cycle[1:], proof.cycle[0]), strict=True))
    in_step = view.record.promises.get(SAME_SITE) is True  # then logical time says what was first

    def order(wait: Wait) -> tuple[int, int, int, int, int]:
        op = _awaited(view, wait)
        if op is None:
            return wait.step, 0, 0, 0, wait.rank
        deep = depth.get((channel(op), op.enter.ordinal), 0)
        if in_step:
            return op.step, 0, 0, deep, wait.rank
        # Who is missing in the wider operation stands in the narrower one, and so says why; who is
        # missing in the narrower one has gone on to the wider one, past the place.
        past = -_width(view, _awaited(view, holder[wait.rank, wait.thread]))
        return op.step, _width(view, op), past, deep, wait.rank

    first = min(proof.cycle, key=order)
    notes = tuple(f"{wait}: stuck behind" for wait in proof.behind)
    divergence = _meeting(view, first, proof)
    step, told = divergence.step, proof.told()
    return Ending(Outcome.DEADLOCK, step, proof.ranks, told, divergence, notes, first.step)


def _width(view: View, op: Op | None) -> int:
    """How many ranks take part in an operation; 0 for none."""
    if op is None:
        return 0
    return 2 if op.is_message else len(view.members(op.enter.group))


def _awaited(view: View, wait: Wait) -> Op | None:
    """The operation that a node stands in; if that is a wait, the one it waits for."""
    rank = view.ranks[wait.rank]
    at = rank.standing if wait.thread == 0 else rank.standing_threads.get(wait.thread)
    if not isinstance(at, Op):
        return None
    if not at.is_wait:
        return at
    return next((op for op in rank.ops if not op.is_wait and op.way == at.way), at)


def _meeting(view: View, wait: Wait, proof: Deadlock) -> Divergence:
    """The operation that some ranks came to and others never did. Odd is who waits for a rank that
    does not exist, else the fewer are; where they are as many, those that have ended, else nobody
    can say: the side without the lowest rank is listed first.
    """
    op = _awaited(view, wait)
    did = _standings(view)
    if op is None:
        return singled_out(wait.step, "rank", did, (wait.rank,))
    absent = set(wait.waits_for)
    taking_part = {wait.rank, *absent}
    if op.is_collective:
        rank = view.ranks[wait.rank]
        taking_part |= set(rank.groups.get(op.enter.group) or view.members(op.enter.group))
    there = taking_part - absent
    for one in there & view.ranks.keys():
        did[one] = _made(view, view.ranks[one], op)
    for one in absent:
        did[one] = _left_out(view, one, op)
    even = len(there) == len(absent) and not absent & {*proof.ended, *proof.unknown}
    if absent & set(proof.unknown):
        odd = {wait.rank}
    elif len(there) != len(absent):
        odd = min(there, absent, key=len)
    else:
        odd = max(there, absent, key=min) if even else absent
    found = singled_out(op.step, str(channel(op)), did, sorted(odd), op.enter.ordinal)
    return replace(found, even=True, majority=tuple(sorted(taking_part - odd))) if even else found


def _made(view: View, rank: RankView, op: Op) -> str:
    """What a rank did that came to an operation which others left out."""
    told = standing.told(view, rank)
    own = standing.entered(view, rank.rank, op) if op.is_collective else op
    if own is None or own.rank != rank.rank or rank.standing is own:
        return told
    return f"made its {standing.told_op(own)} in step {own.step}; {told}"


def _left_out(view: View, absent: int, op: Op) -> str:
    """What a rank did that never came to the operation of another one."""
    rank = view.ranks.get(absent)
    if rank is None:
        return "does not exist"
    other = {"send": "receive", "isend": "receive", "recv": "send", "irecv": "send"}
    entered = awaited_op(op.enter.op)
    kind = other.get(entered, entered)
    where = f"{kind} #{op.enter.ordinal} of {channel(op)}"
    told = f"{standing.told(view, rank)}{_instead(op, rank)}"
    inside = rank.standing is not None
    return f"made no {where}; {told}{'' if inside else standing.last_made(rank)}"


def _instead(op: Op, other: RankView) -> str:
    """Where the other end of a message is at another tag of the same pipe: which one."""
    at = other.standing
    if op.is_collective or not isinstance(at, Op) or not at.is_message:
        return ""
    mine, theirs = op.pipe, at.pipe
    same = (mine.group, mine.src, mine.dst) == (theirs.group, theirs.src, theirs.dst)
    return f", under tag {told_tag(theirs.tag)}" if same and mine.tag != theirs.tag else ""


def _hang(view: View) -> Ending:
    inside = [rank for rank in view.ranks.values() if not rank.done and rank.final is None]
    waiting = inside or [rank for rank in view.ranks.values() if not rank.done]
    # A rank that somebody stopped keeps the others. Who stands in no operation is waited for, not
    # waiting: an event, a local queue, a busy loop. Else the root is who waits for a rank that
    # left, else who waits for nobody; else nobody can be told from the others.
    paused = [rank for rank in waiting if rank.record.exit == "paused"]
    outside = [rank for rank in waiting if not isinstance(rank.standing, Op)]
    left = view.ranks.keys() - {rank.rank for rank in waiting}
    left_behind = [rank for rank in waiting if left.intersection(standing.waits_for(view, rank))]
    sinks = [rank for rank in waiting if not standing.waits_for(view, rank)]
    pending = [] if paused else _pending(view, outside)
    if pending:
        return _hung_in_flight(view, waiting, pending)
    roots = paused or outside or left_behind or sinks or waiting
    did = _standings(view)
    first = min(roots, key=lambda rank: (rank.step, rank.rank))
    ranks = tuple(rank.rank for rank in roots)
    place = _place(view, first)
    if place.op is not None:
        did |= _at_place(view, place.op, ranks)
    return _hung(view, waiting, ranks, _Told(first.step, place, did))


class _Told(NamedTuple):
    """Where and how a hang is told: step, place, and what each rank did there."""

    step: int
    place: _Place
    did: dict[int, str]


def _hung(view: View, waiting: list[RankView], ranks: tuple[int, ...], told: _Told) -> Ending:
    stood = _standings(view)
    behind = [rank.rank for rank in waiting if rank.rank not in ranks]
    stands = "; ".join(f"rank {rank} {told.did.get(rank, 'is not there')}" for rank in ranks)
    summary = f"{stands}; behind: {named(behind)}" if behind else stands
    notes = tuple(f"rank {rank} {stood[rank]}" for rank in behind)
    place = told.place
    divergence = singled_out(told.step, place.channel, told.did, ranks, place.ordinal)
    return Ending(Outcome.HANG, told.step, ranks, summary, divergence, notes)


def _pending(view: View, outside: list[RankView]) -> list[tuple[Op, list[int]]]:
    """Operations that ranks outside any recorded operation of their main thread may wait for where
    the recorder does not see it: what another of their threads stands in, waiting for ranks that
    cannot come by themselves, and collectives in flight. Each with the ranks that left it out.
    """
    unseen = [rank for rank in outside if rank.standing is None]
    running = {rank.rank for rank in unseen if not rank.standing_threads}
    in_threads = [
        (at, list(wait.waits_for))
        for rank in unseen
        for thread, at in sorted(rank.standing_threads.items())
        if isinstance(at, Op) and (wait := view.waits.get((rank.rank, thread))) is not None
        if wait.waits_for and not running.intersection(wait.waits_for)
    ]
    in_flight = [each for rank in unseen for each in standing.in_flight(view, rank)]
    found = in_threads or in_flight
    return sorted(found, key=lambda one: (one[0].step, one[0].enter.ordinal))


def _hung_in_flight(
    view: View, waiting: list[RankView], pending: list[tuple[Op, list[int]]]
) -> Ending:
    op, missing = pending[0]
    did = _standings(view) | _at_place(view, op, tuple(missing))
    place = _Place(str(channel(op)), op.enter.ordinal, op)
    return _hung(view, waiting, tuple(missing), _Told(op.step, place, did))


def _at_place(view: View, op: Op, ranks: tuple[int, ...]) -> dict[int, str]:
    """What the members did about an operation that these ranks, or some of them, left out."""
    told: dict[int, str] = {}
    if op.is_message:
        return {rank: _left_out(view, rank, op) for rank in ranks if rank != op.rank}
    for member in view.members(op.enter.group):
        rank = view.ranks.get(member)
        if rank is not None and standing.entered(view, member, op) is not None:
            told[member] = _made(view, rank, op)
        elif member in ranks:
            told[member] = _left_out(view, member, op)
    return told


def _standings(view: View) -> dict[int, str]:
    return {rank.rank: standing.told(view, rank) for rank in view.ranks.values()}


def _at(view: View, root: RankView, did: dict[int, str], odd: tuple[int, ...]) -> Divergence:
    place = _place(view, root)
    return singled_out(root.step, place.channel, did, odd, place.ordinal)


def _place(view: View, root: RankView) -> _Place:
    """Channel and ordinal of what the root did not get past: its own operation, or the first one of
    the same step in which another rank waits for it; else the event or queue it stands in, or just
    the rank.
    """
    ops = [root.standing, *(rank.standing for rank in _awaiting(view, root))]
    for op in ops:
        if isinstance(op, Op) and op.step == root.step:
            return _Place(str(channel(op)), op.enter.ordinal, op)
    if isinstance(root.standing, Sync):
        return _Place(f"event of {root.standing.key}", -1)
    if isinstance(root.standing, Block):
        return _Place(f"{root.standing.queue} queue", -1)
    return _Place("rank", -1)


def _awaiting(view: View, root: RankView) -> list[RankView]:
    others = (rank for rank in view.ranks.values() if rank is not root and not rank.done)
    return [rank for rank in others if root.rank in standing.waits_for(view, rank)]
