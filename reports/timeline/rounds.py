"""Logical time: the round in which each rank came to each of its operations, and left it.

Ranks have clocks of their own, and what the clock of one machine says of four processes on two
cores explains nothing. In a round every rank that can goes on by one operation: a collective when
all that ever entered it have, a receive when its message was sent, anything else at once. So a
collective is left in the same round on all ranks, and waiting is as long as it has to be.
"""

from collections import defaultdict
from typing import NamedTuple

from testbed.analysis.logical_time import Channel, channel
from testbed.analysis.view import Op, RankView, View
from testbed.model.events import Block, Enter, Sync


class Item(NamedTuple):
    """One thing that keeps a rank busy. what: an operation; a wait for an event that was not ready;
    a wait for an item of an empty queue. place: of its event among the rank's events. stuck:
    whether the rank never came out of it. entered, left: rounds.
    """

    what: Op | Sync | Block
    place: int
    stuck: bool
    entered: int
    left: int

    @property
    def step(self) -> int:
        """Scheduler step."""
        return self.what.step


def rounds(view: View) -> dict[int, list[Item]]:
    """Rank -> what kept it busy, in order, with rounds."""
    walks = {rank.rank: _Walk(rank) for rank in view.ranks.values()}
    due: dict[tuple[Channel, int], int] = defaultdict(int)
    for walk in walks.values():
        for item in walk.items:
            if _gives(item):
                due[_at(item)] += 1
    now = 0
    while going := [walk for walk in walks.values() if not walk.over]:
        for walk in going:
            if walk.enter(now) and _gives(walk.item):
                due[_at(walk.item)] -= 1
        # Where ranks hold each other for ever, all of them go on: what follows was cut off.
        for walk in [walk for walk in going if not _held(walk.item, due)] or going:
            walk.leave(now)
        now += 1
    return {rank: walk.items for rank, walk in walks.items()}


class _Walk:
    """One rank's way through what kept it busy."""

    def __init__(self, rank: RankView) -> None:
        self.items = _items(rank)
        self._place = 0
        self._entered = -1

    @property
    def over(self) -> bool:
        return self._place == len(self.items)

    @property
    def item(self) -> Item:
        return self.items[self._place]

    def enter(self, now: int) -> bool:
        """Whether it comes to its item only now."""
        if self._entered >= 0:
            return False
        self._entered = now
        return True

    def leave(self, now: int) -> None:
        self.items[self._place] = self.item._replace(entered=self._entered, left=now)
        self._place += 1
        self._entered = -1


def _items(rank: RankView) -> list[Item]:
    ops = iter(rank.ops)
    standing = rank.standing
    found: list[Item] = []
    for place, event in enumerate(rank.record.events):
        if isinstance(event, Enter):
            op = next(ops)
            found.append(Item(op, place, op.is_open or op is standing, -1, -1))
        elif isinstance(event, Sync):
            stuck = event is standing
            if event.stall or stuck:
                found.append(Item(event, place, stuck, -1, -1))
        elif isinstance(event, Block):
            found.append(Item(event, place, event is standing, -1, -1))
    return found


def _gives(item: Item) -> bool:
    """Whether others may wait until this has been entered."""
    op = item.what
    return isinstance(op, Op) and not op.is_wait and (op.is_collective or op.is_send)


def _at(item: Item) -> tuple[Channel, int]:
    assert isinstance(item.what, Op)
    return channel(item.what), item.what.enter.ordinal


def _held(item: Item, due: dict[tuple[Channel, int], int]) -> bool:
    op = item.what
    if not isinstance(op, Op) or op.is_wait:
        return False
    blocking = op.is_collective or op.enter.op == "recv"
    return blocking and due.get(_at(item), 0) > 0
