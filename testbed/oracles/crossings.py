"""Crossings: two operations of one channel that met the wrong way round.

Nobody has to call an operation from the same function on both ends: what one end calls *publish*
the other may call *follow*. Which call sites belong together is learned from the run itself. Only
an inconsistency is evidence: X met Y' and close by Y met X', while X belongs to X' and Y to Y'.

A pipeline that goes over from warm-up to its steady state meets X-X', X-Y', Y-Y', which never
crosses. Ends that choose their functions by conditions of their own mix all four, alone or
together: so a pair that is mixed without crossing in its step takes all evidence away.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from testbed.analysis.view import Op

SEEN = 2
"""How often each straight pair must have been seen for the correspondence to count as learned."""

_NEAR = 16


class Pair(NamedTuple):
    """The two ends of the operation at one place of a channel."""

    place: int
    one: Op
    other: Op


class Crossing(NamedTuple):
    """Two pairs that met the wrong way round; the first one's place is where it shows."""

    first: Pair
    second: Pair


_Site = tuple[str, ...]  # its role last
_Key = tuple[_Site, _Site]


def crossing(pairs: Sequence[Pair], *, by_name: bool) -> Crossing | None:
    """The first crossing among the pairs of one channel, in order; None if nothing is evidence.

    A correspondence counts as learned once both straight pairs were seen SEEN times each, and twice
    as often as the mixed ones. by_name: sites of the same functions belong together even if they
    were never seen to meet; else they have to be seen so at least once each.
    """
    known = [pair for pair in pairs if pair.one.enter.caller and pair.other.enter.caller]
    return _first(known, _site, _learned) or _first(
        known, _functions, _named if by_name else _named_and_seen
    )


def _first(
    pairs: list[Pair],
    key: Callable[[Op], _Site],
    straight: Callable[[Counter[_Key], _Key, _Key], bool],
) -> Crossing | None:
    keys = [(key(pair.one), key(pair.other)) for pair in pairs]
    count = Counter(keys)
    suspects = {
        frozenset((mixed, back))
        for mixed in count
        for back in count
        if mixed[0] != back[0] and mixed[1] != back[1] and straight(count, mixed, back)
    }
    found = [
        crossing
        for suspect in suspects
        if (crossing := _all_crossed(pairs, keys, suspect, count)) is not None
    ]
    return min(found, key=lambda one: one.first.place, default=None)


def _all_crossed(
    pairs: list[Pair], keys: list[_Key], suspect: frozenset[_Key], count: Counter[_Key]
) -> Crossing | None:
    """The first of the crossings of these two keys, if each of them is part of one."""
    crossed: list[Crossing] = []
    used: set[int] = set()
    for place, key in enumerate(keys):
        if key in suspect and place not in used:
            back = next(_back(pairs, keys, place, suspect - {key}), None)
            if back is None or back in used:
                return None
            used |= {place, back}
            crossed.append(Crossing(pairs[place], pairs[back]))
    return crossed[0] if len(used) == sum(count[key] for key in suspect) else None


def _back(
    pairs: list[Pair], keys: list[_Key], place: int, wanted: frozenset[_Key]
) -> Iterator[int]:
    """The next pair that crosses this one: in the same step of both ends, with nothing of the same
    sites in between.
    """
    ones = {keys[place][0], *(key[0] for key in wanted)}
    others = {keys[place][1], *(key[1] for key in wanted)}
    for at in range(place + 1, min(place + 1 + _NEAR, len(pairs))):
        if not _together(pairs[place], pairs[at]):
            return
        if keys[at] in wanted:
            yield at
            return
        if keys[at][0] in ones or keys[at][1] in others:
            return


def _together(pair: Pair, later: Pair) -> bool:
    return _same_step(pair, pair.one, later.one, later) and _same_step(
        pair, pair.other, later.other, later
    )


def _same_step(pair: Pair, op: Op, after: Op, later: Pair) -> bool:
    if op.has_step and after.has_step:
        return op.step == after.step
    return later.place == pair.place + 1


def _site(op: Op) -> _Site:
    return op.enter.caller, op.enter.site, _role(op)


def _functions(op: Op) -> _Site:
    return op.enter.caller, _role(op)


def _role(op: Op) -> str:
    """Root or not, of a collective that has one. The ends of a pipe never change theirs."""
    if not op.is_collective or op.enter.peer < 0:
        return ""
    return "root" if op.enter.peer == op.rank else "other"


def _straight(mixed: _Key, back: _Key) -> tuple[_Key, _Key]:
    return (mixed[0], back[1]), (back[0], mixed[1])


def _learned(count: Counter[_Key], mixed: _Key, back: _Key) -> bool:
    one, other = _straight(mixed, back)
    enough = min(count[one], count[other]) >= SEEN
    return enough and 2 * (count[mixed] + count[back]) <= count[one] + count[other]


def _named(count: Counter[_Key], mixed: _Key, back: _Key) -> bool:
    # A root and the others do different things: of these the names say nothing.
    alike = all(one[-1] == other[-1] for one, other in (mixed, back))
    return alike and all(key[0] == key[1] for key in _straight(mixed, back))


def _named_and_seen(count: Counter[_Key], mixed: _Key, back: _Key) -> bool:
    one, other = _straight(mixed, back)
    seen = min(count[one], count[other]) >= 1
    often = count[mixed] + count[back] <= count[one] + count[other]
    return seen and often and _named(count, mixed, back)
