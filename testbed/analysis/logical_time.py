"""Which operation came before which: by program order and matching ordinals, never by time."""

from collections import defaultdict

from testbed.analysis.view import Op, Pipe, RankView, View

Channel = str | Pipe


def channel(op: Op) -> Channel:
    """The group of a collective, the pipe of a message; of a wait, that of what it waits for."""
    return op.way.channel(op.rank)


def depths(view: View) -> dict[tuple[Channel, int], int]:
    """(channel, ordinal) -> how many rounds of operations must lie before it.

    In each round every thread of a rank enters its next operation, once the one before it could
    return: a collective when all who ever entered it have, a receive when its message was sent,
    anything else at once. Where ranks hold each other for ever, all of them go on: what follows is
    no evidence.
    """
    walks = [walk for rank in view.ranks.values() for walk in _walks(rank)]
    due: dict[tuple[Channel, int], int] = defaultdict(int)
    for walk in walks:
        for op in walk.ops:
            due[channel(op), op.enter.ordinal] += op.is_collective or op.is_send
    found: dict[tuple[Channel, int], int] = {}
    depth = 0
    while going := [walk for walk in walks if walk.place < len(walk.ops)]:
        for walk in going:
            if not walk.entered:
                walk.entered = True
                at = walk.at
                found.setdefault(at, depth)
                due[at] -= walk.op.is_collective or walk.op.is_send
        free = [walk for walk in going if not walk.holds(due)]
        for walk in free or going:
            walk.place += 1
            walk.entered = False
        depth += 1
    return found


def _walks(rank: RankView) -> "list[_Walk]":
    by_thread: dict[int, list[Op]] = defaultdict(list)
    for op in rank.ops:
        if not op.is_wait:
            by_thread[op.enter.thread].append(op)
    return [_Walk(ops) for ops in by_thread.values()]


class _Walk:
    """One thread's way through its operations."""

    def __init__(self, ops: list[Op]) -> None:
        self.ops = ops
        self.place = 0
        self.entered = False

    @property
    def op(self) -> Op:
        return self.ops[self.place]

    @property
    def at(self) -> tuple[Channel, int]:
        return channel(self.op), self.op.enter.ordinal

    def holds(self, due: dict[tuple[Channel, int], int]) -> bool:
        """Whether its operation cannot return yet."""
        blocking = self.op.is_collective or self.op.enter.op == "recv"
        return blocking and due.get(self.at, 0) > 0
