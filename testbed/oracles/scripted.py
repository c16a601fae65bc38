"""Which calls that the scenario has the ranks' loop make may have led to what went wrong."""

from collections.abc import Iterator
from typing import NamedTuple

from testbed.analysis.logical_time import channel
from testbed.analysis.sides import named
from testbed.analysis.view import Op, RankView, View
from testbed.model.events import Call, Enter
from testbed.model.scenario import CallSpec, select
from testbed.model.topology import Topology
from testbed.model.verdict import Divergence

_FEW = 3


class Scripted(NamedTuple):
    """One entry of the scenario's ``calls`` that was made in time. place: in that list. ranks: that
    made it. first, last: steps in which they did, up to the divergence. keys: what it was about.
    everywhere: whether all ranks made it.
    """

    place: int
    call: str
    ranks: tuple[int, ...]
    first: int
    last: int
    keys: tuple[str, ...]
    everywhere: bool

    def told(self) -> str:
        """``calls[0] (flush) on rank 0, step 2``."""
        more = f" and {len(self.keys) - _FEW} more" if len(self.keys) > _FEW else ""
        about = f" of {', '.join(self.keys[:_FEW])}{more}" if self.keys else ""
        when = f"step {self.first}"
        if self.last != self.first:
            when = f"steps {self.first} to {self.last}"
        return f"calls[{self.place}] ({self.call}{about}) on {named(self.ranks)}, {when}"


def scripted(view: View, divergence: Divergence | None) -> list[Scripted]:
    """The calls that were made before the first divergence, those not made on every rank first.

    A call before the divergence need not have led there; one after it cannot have.
    """
    if divergence is None or not view.scenario.calls:
        return []
    made: dict[int, list[tuple[int, Call]]] = {}
    for rank in view.ranks.values():
        for event in _calls_until(rank, divergence):
            place = _place(view.scenario.calls, view.topology, rank.rank, event)
            if place is not None:
                made.setdefault(place, []).append((rank.rank, event))
    found = [_scripted(view, place, of_place) for place, of_place in sorted(made.items())]
    return sorted(found, key=lambda one: one.everywhere)


def _scripted(view: View, place: int, made: list[tuple[int, Call]]) -> Scripted:
    steps = [event.step for _, event in made]
    ranks = tuple(sorted({rank for rank, _ in made}))
    return Scripted(
        place,
        view.scenario.calls[place].call,
        ranks,
        min(steps),
        max(steps),
        tuple(dict.fromkeys(event.key for _, event in made if event.key)),
        everywhere=len(ranks) == view.topology.size,
    )


def _calls_until(rank: RankView, divergence: Divergence) -> Iterator[Call]:
    """The rank's calls up to the operation of the divergence, or to the end of its step."""
    ops: Iterator[Op] = iter(rank.ops)
    for event in rank.record.events:
        if isinstance(event, Enter):
            op = next(ops)
            at = (str(channel(op)), op.enter.ordinal)
            if not op.is_wait and at == (divergence.channel, divergence.ordinal):
                return
        if isinstance(event, Call) and event.step <= divergence.step:
            yield event


def _place(calls: list[CallSpec], topology: Topology, rank: int, event: Call) -> int | None:
    """The entry of the scenario's list that has it made."""
    for place, spec in enumerate(calls):
        due = spec.from_step <= event.step and (
            spec.until_step is None or event.step < spec.until_step
        )
        about = spec.only is None or not event.key or event.key in spec.only
        if spec.call == event.call and due and about and rank in select(spec.on, topology):
            return place
    return None
