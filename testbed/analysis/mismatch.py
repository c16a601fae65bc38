"""Whether a standstill is one of collectives that do not fit together. Pure.

gloo may block for ever in these, or return with part of the data: nobody can prove which. What is
known is that the run is broken, and where; so nothing is gained by waiting as long as for a rank
that may only be slow.
"""

from collections.abc import Mapping, Sequence

from testbed.analysis.wait_graph import OpenCalls, is_message, members_of
from testbed.model.events import Enter, Event, Final, Group, Raised
from testbed.model.topology import Topology
from testbed.recorder.operations import FORMS

SIZES_APART = frozenset(form.op for form in FORMS if not form.alike)
"""Collectives whose members may lawfully bring tensors, or objects, of different sizes."""


def stuck_in_mismatch(events: Mapping[int, Sequence[Event]], topology: Topology) -> bool:
    """Whether every rank has ended or is blocked in an operation, and one of them in a collective
    that another member entered with another operation, reduction, dtype or length. events: those of
    every rank of the case so far.
    """
    blocked: list[tuple[int, Enter]] = []
    for rank, of_rank in events.items():
        calls = OpenCalls()
        for event in of_rank:
            calls.see(event)
        if not isinstance(calls.open.get(0), Enter) and not _ended(of_rank):
            return False
        blocked += [(rank, at) for at in calls.open.values() if isinstance(at, Enter)]
    return any(_does_not_fit(rank, at, events, topology) for rank, at in blocked)


def face(entered: Enter) -> tuple[str, str, str, int]:
    """What every member of a collective has to enter it with, but for its root."""
    numel = -1 if entered.op in SIZES_APART else entered.numel
    return entered.op, entered.reduce_op, entered.dtype, numel


def _ended(of_rank: Sequence[Event]) -> bool:
    return any(isinstance(event, Final | Raised) for event in reversed(of_rank))


def _does_not_fit(
    rank: int, at: Enter, events: Mapping[int, Sequence[Event]], topology: Topology
) -> bool:
    if is_message(at.op) or at.op.startswith("wait"):
        return False
    own = {event.name: tuple(event.ranks) for event in events[rank] if isinstance(event, Group)}
    members = own.get(at.group) or members_of(at.group, rank, topology)
    # A subject may name members that the case does not have.
    others = [_entered(events.get(member, ()), at) for member in members if member != rank]
    return any(other is not None and face(other) != face(at) for other in others)


def _entered(of_rank: Sequence[Event], at: Enter) -> Enter | None:
    """The same collective as another member entered it."""
    return next(
        (
            event
            for event in reversed(of_rank)
            if isinstance(event, Enter)
            and (event.group, event.ordinal) == (at.group, at.ordinal)
            and not is_message(event.op)
            and not event.op.startswith("wait")
        ),
        None,
    )
