"""Where two series of operations that should run side by side came out of step for good."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from testbed.analysis.view import Op


class Apart(NamedTuple):
    """step: first one in which the two had not made as many as before, compared with each other.
    place: of the first operation that met another one than it was meant for. odd: 0 or 1, the
    series that did otherwise in that step than in most; None if that tells nothing.
    """

    step: int
    place: int
    odd: int | None


def came_apart(one: Sequence[Op], other: Sequence[Op], last: int, *, unequal: bool) -> Apart | None:
    """None if they never did, or if it cannot be told where. Both in order; last: the last step
    that both came through. unequal: it is known that one of them lacks an operation in the end.

    What is compared is by how many operations one is ahead: that does not depend on how late the
    other takes them by design. It is told where this changed and never changed back; if it never
    changed, the first step, where by design nobody can lack one for ever.
    """
    if not all(op.has_step for op in (*one, *other)):
        return None
    counts = (_by_step(one, last), _by_step(other, last))
    steps = range(min((*counts[0], *counts[1]), default=last + 1), last + 1)
    ahead: list[int] = []
    made = [0, 0]
    totals: list[tuple[int, int]] = []
    for step in steps:
        made = [made[0] + counts[0][step], made[1] + counts[1][step]]
        totals.append((made[0], made[1]))
        ahead.append(made[0] - made[1])
    if not ahead:
        return None
    place = max(at for at, by in enumerate(ahead) if by == ahead[0]) + 1
    if place == len(ahead):
        if not (unequal and ahead[0] and set(ahead) == {ahead[0]}):
            return None
        place = 0
    step = steps[place]
    return Apart(step, min(totals[place]), _odd(counts, step))


def odd_one(one: Sequence[Op], other: Sequence[Op], step: int) -> int | None:
    """0 or 1, the series that made another number of operations in that step than in most, if only
    one did; None if that tells nothing.
    """
    return _odd([Counter(op.step for op in ops if op.has_step) for ops in (one, other)], step)


def _odd(counts: Sequence[Counter[int]], step: int) -> int | None:
    odd = [_is_odd(of, step) for of in counts]
    return odd.index(True) if odd.count(True) == 1 else None


def _by_step(ops: Iterable[Op], last: int) -> Counter[int]:
    return Counter(op.step for op in ops if op.step <= last)


def _is_odd(counts: Counter[int], step: int) -> bool:
    """Whether that step has another count than most of the series' steps."""
    every = [counts[at] for at in range(min(counts), max(counts) + 1)] if counts else []
    usual, _ = Counter(every).most_common(1)[0] if every else (0, 0)
    return counts[step] != usual
