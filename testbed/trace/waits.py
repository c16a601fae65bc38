"""Who waits for whom, and the proof that nobody of a set of ranks can ever move again. Pure.

A rank blocked in a collective waits for the members that have not entered that ordinal; in a
receive, for its source unless that has sent this message; in a send or its ``wait``, for its
destination unless that has posted this receive; in an event or a local queue, for nobody who can be
named. A rank is dead if somebody it waits for is dead or has ended. What is left after all others
are struck out is a deadlock: no assumption on time is made, only that none of its ranks moved while
it was looked at, which the caller makes sure of by looking twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.topology import Topology, has_tags, told_tag, without_backend
from testbed.trace.events import (
    Block,
    Enter,
    Event,
    Exit,
    Final,
    Group,
    Raised,
    Sync,
    Synced,
    Take,
)

_SENDS = ("send", "isend", "wait")
Channel = tuple[str, int, int, int]


@dataclass(frozen=True)
class Wait:
    """One rank's blocked call and the ranks it waits for (none: nobody who can be named). event:
    the one it is blocked in.
    """

    rank: int
    step: int
    what: str
    waits_for: tuple[int, ...]
    event: Event

    def __str__(self) -> str:
        awaited = ", ".join(f"rank {rank}" for rank in self.waits_for) or "nobody who can be named"
        return f"rank {self.rank} waits in {self.what} for {awaited}"


@dataclass(frozen=True)
class Deadlock:
    """cycle: waits that hold each other, in order; or the one wait for ranks that have left their
    loop, which needs no cycle: those are ``ended``. behind: all other dead ranks.
    """

    cycle: tuple[Wait, ...]
    behind: tuple[Wait, ...]
    ended: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of ``cycle``, smallest first."""
        return tuple(sorted(wait.rank for wait in self.cycle))

    @property
    def dead(self) -> set[int]:
        """Ranks that can never move again: those of ``cycle``, and those stuck behind."""
        return {wait.rank for wait in (*self.cycle, *self.behind)}

    def told(self) -> str:
        """The argument in one paragraph: what holds first, then who is merely stuck behind it."""
        lines = [f"{wait}" for wait in self.cycle]
        left = [f"rank {rank} has left its loop" for rank in self.ended]
        closing = ", ".join(left) or "nobody can move"
        stuck = [f"{wait}" for wait in self.behind]
        return "; ".join([*lines, closing]) + (
            "; stuck behind: " + "; ".join(stuck) if stuck else ""
        )


def prove(events: Mapping[int, Sequence[Event]], topology: Topology) -> Deadlock | None:
    """The deadlock among ranks whose ``events`` so far are given (every rank of the case), or
    None.
    """
    progress = {rank: _Progress.of(rank, of_rank) for rank, of_rank in events.items()}
    ended = {rank for rank, one in progress.items() if one.ended}
    waits = {
        rank: wait
        for rank, one in progress.items()
        if rank not in ended and (wait := one.wait(progress, topology)) is not None
    }
    dead = {rank for rank, wait in waits.items() if wait.waits_for}
    while True:
        alive = {rank for rank in dead if not set(waits[rank].waits_for) & (dead | ended)}
        if not alive:
            break
        dead -= alive
    if not dead:
        return None
    cycle = _cycle(waits, dead, ended)
    in_cycle = {wait.rank for wait in cycle}
    last = set(cycle[-1].waits_for) & ended
    closed = bool(set(cycle[-1].waits_for) & in_cycle)
    return Deadlock(
        cycle=tuple(cycle),
        behind=tuple(waits[rank] for rank in sorted(dead - in_cycle)),
        ended=() if closed else tuple(sorted(last)),
    )


@dataclass(frozen=True)
class _Progress:
    """How far one rank has come: operations entered per channel, and what it is blocked in.
    groups: members of the groups that are its own, not the topology's.
    """

    rank: int
    entered: Counter[Channel]
    ended: bool
    blocked: Event | None
    groups: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, rank: int, events: Iterable[Event]) -> "_Progress":
        entered: Counter[Channel] = Counter()
        blocked: Event | None = None
        ended = False
        groups: dict[str, tuple[int, ...]] = {}
        for event in events:
            if isinstance(event, Enter):
                if not event.op.startswith("wait"):
                    entered[_channel(rank, event)] += 1
                blocked = event
            elif isinstance(event, Sync | Block):
                blocked = event
            elif isinstance(event, Exit | Synced | Take):
                blocked = None
            elif isinstance(event, Final | Raised):
                ended = True
            elif isinstance(event, Group):
                groups[event.name] = tuple(event.ranks)
        return cls(rank, entered, ended, blocked, groups)

    def wait(self, others: Mapping[int, "_Progress"], topology: Topology) -> Wait | None:
        """What this rank waits for; None if it runs, or if what it waits for is on its way."""
        event = self.blocked
        if event is None:
            return None
        if isinstance(event, Sync):
            return Wait(self.rank, event.step, f"the finish event of {event.key}", (), event)
        if isinstance(event, Block):
            return Wait(self.rank, event.step, f"its own {event.queue} queue", (), event)
        assert isinstance(event, Enter)
        if event.peer >= 0 and event.tag >= 0:
            # The other end enters the same pipe; being there already means: on its way.
            missing = [event.peer] if self._absent(others, event, event.peer) else []
        else:
            members = self.groups.get(event.group) or members_of(event.group, self.rank, topology)
            missing = [rank for rank in members if self._absent(others, event, rank)]
        if not missing:
            return None
        return Wait(self.rank, event.step, _told(event), tuple(missing), event)

    def _absent(self, others: Mapping[int, "_Progress"], event: Enter, rank: int) -> bool:
        return others[rank].entered[_channel(self.rank, event)] <= event.ordinal


def _channel(rank: int, event: Enter) -> Channel:
    if event.tag < 0:
        return (event.group, -1, -1, -1)
    # Whose operation it is tells the direction; a send's wait is the sender's.
    source, destination = (rank, event.peer) if event.op in _SENDS else (event.peer, rank)
    return (event.group, source, destination, event.tag if has_tags(event.group) else 0)


def members_of(group: str, rank: int, topology: Topology) -> tuple[int, ...]:
    """Global ranks of a group of the topology that ``rank`` is in, over whatever it goes; any other
    name: all ranks.
    """
    for spec in (topology.tp_group(rank), topology.cp_group(rank), topology.pp_group(rank)):
        if spec.name == without_backend(group):
            return spec.ranks
    return tuple(range(topology.size))


def _told(event: Enter) -> str:
    place = f"{event.op} #{event.ordinal} of {event.group}"
    if event.tag > 0:
        place += f" tag {told_tag(event.tag)}"
    caller = event.caller.rpartition(">")[2] or "no caller"
    site = f" at {event.site}" if event.site else ""
    return f"{place} ({caller}{site}, step {event.step})"


def _cycle(waits: Mapping[int, Wait], dead: set[int], ended: set[int]) -> list[Wait]:
    """Follow one dead awaited rank after the other from the smallest, until a rank comes again
    or one has ended.
    """
    path: list[int] = []
    rank = min(dead)
    while rank not in path:
        path.append(rank)
        following = [other for other in waits[rank].waits_for if other in dead]
        if not following:
            return [waits[rank]]  # it waits for one that ended: the root, no cycle needed
        rank = following[0]
    return [waits[other] for other in path[path.index(rank) :]]
