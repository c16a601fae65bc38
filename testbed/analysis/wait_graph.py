"""Who waits for whom, and the proof that nobody of a set of ranks can ever move again. Pure.

A *node* is one thread of one rank; thread 0 is the main one. A node that is blocked in a collective
waits for the members that have not entered that ordinal; in a receive, for its source unless that
has sent this message; in a receive from any source, for every rank that could send to it; in a
send or its ``wait``, for its destination unless that has posted this receive; in an event or a
local queue, for nobody who can be named.

An awaited rank is hopeless if it does not exist, if it has ended, or if every thread of it that has
used the group is dead; where none has used it, if every recorded thread is. Another thread than the
main one may outlive its rank's loop. A node is dead if somebody it waits for is hopeless, and a
receive from any source only if all are. A call with a timeout of its own is never dead. What is
left after all others are struck out is a deadlock if a main thread is among it: no assumption on
time is made, only that none of its ranks moved while it was looked at, which the caller makes sure
of by looking twice.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.model.events import (
    Answer,
    Begin,
    Block,
    Call,
    End,
    Enter,
    Event,
    Exit,
    Final,
    Group,
    Left,
    Raised,
    Settled,
    Sync,
    Synced,
    Take,
)
from testbed.model.topology import Topology, has_tags, told_tag, without_backend
from testbed.model.wording import called_at

SENDS = frozenset({"send", "isend"})
RECVS = frozenset({"recv", "irecv"})
ANY = -1
"""Peer of a receive from any source."""

_MESSAGES = SENDS | RECVS
_AWAITED = {"wait": "isend", "wait_send": "send", "wait_isend": "isend"}
_RUNS = Begin | End | Call | Answer

Channel = tuple[str, int, int, int]
Node = tuple[int, int]


def awaited_op(op: str) -> str:
    """The operation that ``wait`` or ``wait_<op>`` waits for; any other one itself."""
    return _AWAITED.get(op) or (op.removeprefix("wait_") if op.startswith("wait_") else op)


def is_message(op: str) -> bool:
    """Whether it is a send or a receive, or the wait for one. All others are of a whole group."""
    return awaited_op(op) in _MESSAGES


class OpenCalls:
    """What each thread of one rank is blocked in, as its events come in. Thread -> the event."""

    def __init__(self) -> None:
        self.open: dict[int, Enter | Sync | Block] = {}

    def see(self, event: Event) -> None:
        """Take in the rank's next event."""
        if isinstance(event, Enter | Sync | Block):
            self.open[event.thread] = event
        elif isinstance(event, Exit | Left | Synced | Take):
            self.open.pop(event.thread, None)
        elif isinstance(event, _RUNS):  # only the main thread leaves these
            self.open.pop(0, None)


@dataclass(frozen=True)
class Wait:
    """One blocked call and the ranks it waits for (none: nobody who can be named). event: the one
    it is blocked in. thread: of that rank. any_of: one of those ranks would do.
    """

    rank: int
    step: int
    what: str
    waits_for: tuple[int, ...]
    event: Event
    thread: int = 0
    any_of: bool = False

    def __str__(self) -> str:
        awaited = ", ".join(f"rank {rank}" for rank in self.waits_for) or "nobody who can be named"
        if self.any_of and len(self.waits_for) > 1:
            awaited = f"any of {awaited}"
        thread = f", thread {self.thread}," if self.thread else ""
        return f"rank {self.rank}{thread} waits in {self.what} for {awaited}"


@dataclass(frozen=True)
class Deadlock:
    """cycle: waits that hold each other, in order; or the one wait for ranks that never come, which
    needs no cycle: those that have ``ended``, and those that do not exist (``unknown``). behind:
    all other dead waits.
    """

    cycle: tuple[Wait, ...]
    behind: tuple[Wait, ...]
    ended: tuple[int, ...]
    unknown: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of ``cycle``, smallest first."""
        return tuple(sorted({wait.rank for wait in self.cycle}))

    @property
    def dead(self) -> set[int]:
        """Ranks that can never move again: those of ``cycle``, and those stuck behind."""
        return {wait.rank for wait in (*self.cycle, *self.behind)}

    def told(self) -> str:
        """The argument in one paragraph: what holds first, then who is merely stuck behind it."""
        lines = [f"{wait}" for wait in self.cycle]
        never = [f"rank {rank} left its loop without it" for rank in self.ended]
        never += [f"rank {rank} does not exist" for rank in self.unknown]
        closing = ", ".join(never) or "nobody can move"
        stuck = [f"{wait}" for wait in self.behind]
        return "; ".join([*lines, closing]) + (
            "; stuck behind: " + "; ".join(stuck) if stuck else ""
        )


def prove(events: Mapping[int, Sequence[Event]], topology: Topology) -> Deadlock | None:
    """The deadlock among ranks whose ``events`` so far are given (every rank of the case), or
    None.
    """
    return _Look(events, topology).deadlock()


def waits(events: Mapping[int, Sequence[Event]], topology: Topology) -> dict[Node, Wait]:
    """The wait of every node that is blocked in something which is not on its way."""
    return _Look(events, topology).waits


class _Look:
    """All ranks of a case as their events so far show them."""

    def __init__(self, events: Mapping[int, Sequence[Event]], topology: Topology) -> None:
        self._topology = topology
        self._ranks = {rank: _Progress.of(rank, of_rank) for rank, of_rank in events.items()}
        self.waits: dict[Node, Wait] = {}
        for rank, one in self._ranks.items():
            for thread, event in one.blocked.items():
                wait = self._wait(one, event, thread)
                if wait is not None:
                    self.waits[rank, thread] = wait

    def deadlock(self) -> Deadlock | None:
        dead = self._dead()
        mains = sorted(rank for rank, thread in dead if thread == 0)
        if not mains:
            return None
        cycle = self._cycle((mains[0], 0), dead)
        held = {(wait.rank, wait.thread) for wait in cycle}
        last = cycle[-1]
        closed = not held.isdisjoint(self._holders(last, dead))
        never = () if closed else [rank for rank in last.waits_for if not self._could(rank, last)]
        behind = [node for node in sorted(dead - held) if not self._ranks[node[0]].ended]
        return Deadlock(
            cycle=tuple(cycle),
            behind=tuple(self.waits[node] for node in behind),
            ended=tuple(sorted(rank for rank in never if rank in self._ranks)),
            unknown=tuple(sorted(rank for rank in never if rank not in self._ranks)),
        )

    def _dead(self) -> set[Node]:
        dead = {
            node
            for node, wait in self.waits.items()
            if wait.waits_for
            and not (isinstance(wait.event, Enter) and wait.event.timed)
            and not (node[1] == 0 and self._ranks[node[0]].ended)
        }
        while True:
            alive = {node for node in dead if not self._is_dead(self.waits[node], dead)}
            if not alive:
                return dead
            dead -= alive

    def _is_dead(self, wait: Wait, dead: set[Node]) -> bool:
        hopeless = [self._hopeless(rank, wait, dead) for rank in wait.waits_for]
        return all(hopeless) if wait.any_of else any(hopeless)

    def _hopeless(self, rank: int, wait: Wait, dead: set[Node]) -> bool:
        return all((rank, thread) in dead for thread in self._could(rank, wait))

    def _could(self, rank: int, wait: Wait) -> set[int]:
        """Threads of an awaited rank that may still do what the wait is for."""
        one = self._ranks.get(rank)
        if one is None:
            return set()
        assert isinstance(wait.event, Enter)
        used = one.users.get(wait.event.group, set())
        return used - {0} if one.ended else used or one.threads

    def _holders(self, wait: Wait, dead: set[Node]) -> list[Node]:
        """Dead nodes without which the wait cannot end."""
        return [
            (rank, thread)
            for rank in wait.waits_for
            if self._hopeless(rank, wait, dead)
            for thread in sorted(self._could(rank, wait))
        ]

    def _cycle(self, start: Node, dead: set[Node]) -> list[Wait]:
        """Follow one dead awaited node after the other, until one comes again or none is left."""
        path: list[Node] = []
        node = start
        while node not in path:
            path.append(node)
            following = self._holders(self.waits[node], dead)
            if not following:
                return [self.waits[node]]  # it waits for one that never comes: no cycle needed
            node = following[0]
        return [self.waits[other] for other in path[path.index(node) :]]

    # One node

    def _wait(self, one: "_Progress", event: Event, thread: int) -> Wait | None:
        if isinstance(event, Sync):
            what = f"the finish event of {event.key}"
            return Wait(one.rank, event.step, what, (), event, thread)
        if isinstance(event, Block):
            return Wait(one.rank, event.step, f"its own {event.queue} queue", (), event, thread)
        assert isinstance(event, Enter)
        any_of = False
        if not is_message(event.op):
            members = self._members(one, event.group)
            missing = [rank for rank in members if self._absent(one, event, rank)]
        elif event.peer == ANY:
            any_of = True
            missing = [] if self._under_way(one, event) else self._senders(one, event)
        else:
            missing = [] if self._met(one, event) else [event.peer]
        # Of a group of unknown members nobody can say who is missing.
        if not missing and (any_of or is_message(event.op) or self._members(one, event.group)):
            return None
        return Wait(one.rank, event.step, _told(event), tuple(missing), event, thread, any_of)

    def _members(self, one: "_Progress", group: str) -> tuple[int, ...]:
        known = one.groups.get(group) or members_of(group, one.rank, self._topology)
        return known or next(
            (other.groups[group] for other in self._ranks.values() if group in other.groups), ()
        )

    def _absent(self, one: "_Progress", event: Enter, rank: int) -> bool:
        other = self._ranks.get(rank)
        return other is None or other.entered[_channel(one.rank, event)] <= event.ordinal

    def _met(self, one: "_Progress", event: Enter) -> bool:
        """Whether the other end of a message has entered its part, so that it is on its way."""
        other = self._ranks.get(event.peer)
        if other is None:
            return False
        channel = _channel(one.rank, event)
        group, source, _, tag = channel
        if awaited_op(event.op) in SENDS:
            # A receive from any source takes it, unless it is known to have taken another one.
            others = sum(
                count
                for (of_group, of_source, of_tag), count in other.taken.items()
                if (of_group, of_tag) == (group, tag) and of_source != source
            )
            free = other.from_any[group, tag] - others
            return other.entered[channel] + free > event.ordinal
        return other.entered[channel] > event.ordinal + one.taken[group, source, tag]

    def _under_way(self, one: "_Progress", event: Enter) -> bool:
        """Whether more messages were sent here, under that tag, than receives are over."""
        group, _, _, tag = _channel(one.rank, event)
        sent = sum(
            other.entered[group, other.rank, one.rank, tag]
            for other in self._ranks.values()
            if other is not one
        )
        return sent > len(one.over[group, tag])

    def _senders(self, one: "_Progress", event: Enter) -> list[int]:
        return [rank for rank in self._members(one, event.group) if rank != one.rank]


@dataclass(frozen=True)
class _Progress:
    """How far one rank has come. entered: operations per channel. threads: all that left an event.
    users: group -> threads that used it. blocked: thread -> what it is blocked in. groups: members
    of the groups that are its own, not the topology's. By group and tag, of receives: from_any,
    those from any source; over, peers and ordinals of those that are complete; taken, by source,
    what those from any source have taken.
    """

    rank: int
    entered: Counter[Channel] = field(default_factory=Counter)
    threads: set[int] = field(default_factory=lambda: {0})
    users: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    blocked: dict[int, Enter | Sync | Block] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    from_any: Counter[tuple[str, int]] = field(default_factory=Counter)
    over: defaultdict[tuple[str, int], set[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    taken: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    ended: bool = False

    @classmethod
    def of(cls, rank: int, events: Iterable[Event]) -> "_Progress":
        one, calls = cls(rank), OpenCalls()
        ended = False
        for event in events:
            if isinstance(event, Enter):
                one._enter(event)
            elif isinstance(event, Exit):
                one._exit(calls.open.get(event.thread), event)
            elif isinstance(event, Settled) and event.op in RECVS:
                lane = _lane(event.group, event.tag)
                one.over[event.group, lane].add((event.peer, event.ordinal))
            elif isinstance(event, Final | Raised):
                ended = True
            elif isinstance(event, Group):
                one.groups[event.name] = tuple(event.ranks)
            calls.see(event)
        one.blocked.update(calls.open)
        return cls(**{**vars(one), "ended": ended})

    def _enter(self, event: Enter) -> None:
        self.threads.add(event.thread)
        self.users[event.group].add(event.thread)
        if event.op.startswith("wait"):
            return
        channel = _channel(self.rank, event)
        self.entered[channel] = max(self.entered[channel], event.ordinal + 1)
        if event.op in RECVS and event.peer == ANY:
            self.from_any[channel[0], channel[3]] += 1

    def _exit(self, entered: Event | None, event: Exit) -> None:
        # The receive itself, or the wait for one that was posted before.
        if not isinstance(entered, Enter) or entered.op not in ("recv", "wait_irecv", "wait_recv"):
            return
        lane = _lane(entered.group, entered.tag)
        over, this = self.over[entered.group, lane], (entered.peer, entered.ordinal)
        if entered.peer == ANY and event.source >= 0 and this not in over:
            self.taken[entered.group, event.source, lane] += 1
        over.add(this)


def _channel(rank: int, event: Enter) -> Channel:
    if not is_message(event.op):
        return (event.group, -1, -1, -1)
    # Whose operation it is tells the direction; a send's wait is the sender's.
    sends = awaited_op(event.op) in SENDS
    source, destination = (rank, event.peer) if sends else (event.peer, rank)
    return (event.group, source, destination, _lane(event.group, event.tag))


def _lane(group: str, tag: int) -> int:
    return tag if has_tags(group) else 0


def members_of(group: str, rank: int, topology: Topology) -> tuple[int, ...]:
    """Global ranks of a group of the topology that ``rank`` is in, over whatever it goes, or of the
    group of all; none for any other name.
    """
    name = without_backend(group)
    if name == "world":
        return tuple(range(topology.size))
    if not 0 <= rank < topology.size:
        return ()
    for spec in (topology.tp_group(rank), topology.cp_group(rank), topology.pp_group(rank)):
        if spec.name == name:
            return spec.ranks
    return ()


def _told(event: Enter) -> str:
    place = f"{event.op} #{event.ordinal} of {event.group}"
    if event.tag > 0:
        place += f" tag {told_tag(event.tag)}"
    if is_message(event.op) and event.peer == ANY:
        place += " from any source"
    called = called_at(event.caller, event.site) or "no caller"
    return f"{place} ({called}, step {event.step})"
