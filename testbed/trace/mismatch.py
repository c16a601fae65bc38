"""Whether a standstill is one of collectives that do not fit together. Pure.

gloo may block for ever in these, or return with part of the data: nobody can prove which. What is
known is that the run is broken, and where; so nothing is gained by waiting as long as for a rank
that may only be slow.
"""

from collections.abc import Mapping, Sequence

from testbed.topology import Topology
from testbed.trace.events import Enter, Event, Final, Group, Raised
from testbed.trace.waits import members_of


def stuck_in_mismatch(events: Mapping[int, Sequence[Event]], topology: Topology) -> bool:
    """Whether every rank has ended or is blocked in an operation, and one of them in a collective
    that another member entered with another operation, reduction, dtype or length. events: those of
    every rank of the case so far.
    """
    blocked: dict[int, Enter] = {}
    for rank, of_rank in events.items():
        last = of_rank[-1] if of_rank else None
        if isinstance(last, Enter):
            blocked[rank] = last
        elif not isinstance(last, Final | Raised):
            return False
    return any(_does_not_fit(rank, at, events, topology) for rank, at in blocked.items())


def _does_not_fit(
    rank: int, at: Enter, events: Mapping[int, Sequence[Event]], topology: Topology
) -> bool:
    if at.tag >= 0 or at.op.startswith("wait"):
        return False
    own = {event.name: tuple(event.ranks) for event in events[rank] if isinstance(event, Group)}
    members = own.get(at.group) or members_of(at.group, rank, topology)
    # A subject may name members that the case does not have.
    others = [_entered(events.get(member, ()), at) for member in members if member != rank]
    return any(other is not None and _face(other) != _face(at) for other in others)


def _entered(of_rank: Sequence[Event], at: Enter) -> Enter | None:
    """The same collective as another member entered it."""
    return next(
        (
            event
            for event in reversed(of_rank)
            if isinstance(event, Enter)
            and (event.group, event.ordinal) == (at.group, at.ordinal)
            and event.tag < 0
            and not event.op.startswith("wait")
        ),
        None,
    )


def _face(entered: Enter) -> tuple[str, str, str, int]:
    return entered.op, entered.reduce_op, entered.dtype, entered.numel
