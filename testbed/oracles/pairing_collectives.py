"""The collectives of a group that its members did not enter alike."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from testbed.analysis.mismatch import SIZES_APART, face
from testbed.analysis.sides import Placed, told_apart, unequal
from testbed.analysis.view import Op, RankView, View
from testbed.oracles.crossings import Crossing, Pair, crossing
from testbed.oracles.offset import Apart, came_apart, odd_one
from testbed.recorder.operations import FORMS

NEW_GROUP = "new_group"

# The members' splits are recorded of these: shape, what goes to each; values, what comes from each.
_SPLIT = frozenset(form.op for form in FORMS if form.splits)

Series = Mapping[int, list[Op]]
"""The collectives of one group: ordinal -> the members' parts, in the order of the ranks."""


def unlike_collectives(view: View, oracle: str, strict: bool) -> Iterator[Placed]:
    """The first one of each group. strict: callers and steps have to be equal, see ``pairing``."""
    for group, series in _groups(view).items():
        place = _first_unlike(view, series, strict)
        if place is not None:
            ordinal, did = place
            step = _step(series[ordinal])
            finding = unequal(oracle, step, group, ordinal, did, _odd_end(series, tuple(did), step))
            yield Placed(finding, (group, ordinal))
        elif not strict:
            yield from _crossed(oracle, group, series)
            yield from _shifted(view, oracle, group, series)


def _groups(view: View) -> dict[str, dict[int, list[Op]]]:
    groups: dict[str, dict[int, list[Op]]] = {}
    for rank in view.ranks.values():
        for op in rank.ops:
            if op.is_collective:
                series = groups.setdefault(op.enter.group, {})
                series.setdefault(op.enter.ordinal, []).append(op)
    return {group: dict(sorted(series.items())) for group, series in groups.items()}


def _first_unlike(view: View, series: Series, strict: bool) -> tuple[int, dict[int, str]] | None:
    for ordinal, ops in series.items():
        unlike = any(_signature(op) != _signature(ops[0]) for op in ops[1:])
        if unlike or (strict and _apart(ops)):
            return ordinal, _told(ops)
        if ops[0].enter.op in _SPLIT and (did := _splits_differ(view, ops)):
            return ordinal, did
    return None


def _step(ops: Iterable[Op]) -> int:
    return min(op.step for op in ops)


def _apart(ops: list[Op]) -> bool:
    """Whether members came to it by other functions, or in other steps."""
    callers = {op.enter.caller for op in ops if op.enter.caller}
    steps = {op.step for op in ops if op.has_step}
    return len(callers) > 1 or len(steps) > 1


def _signature(op: Op) -> tuple[object, ...]:
    enter = op.enter
    return (
        face(enter),
        enter.peer,
        () if enter.op in SIZES_APART else tuple(enter.shape),
        tuple(enter.values) if enter.op == NEW_GROUP else (),
    )


def _splits_differ(view: View, ops: list[Op]) -> dict[int, str] | None:
    """The first two members of which one sends the other another number of elements than that
    takes.
    """
    members = view.members(ops[0].enter.group)
    places = {rank: place for place, rank in enumerate(members)}
    known = {
        op.rank: op.enter
        for op in ops
        if op.rank in places and len(op.enter.shape) == len(op.enter.values) == len(members)
    }
    for src, out in known.items():
        for dst, into in known.items():
            goes, comes = out.shape[places[dst]], into.values[places[src]]
            if goes != comes:
                gives = f"{out.op}: sends {goes} elements to rank {dst}"
                takes = f"{into.op}: takes {comes} elements from rank {src}"
                return {src: f"{gives}, {takes}"} if src == dst else {src: gives, dst: takes}
    return None


# What was learned from the run


def _crossed(oracle: str, group: str, series: Series) -> Iterator[Placed]:
    """Each member is compared with the first two: what only one of these did shows by the other."""
    by_rank = {ordinal: {op.rank: op for op in ops} for ordinal, ops in series.items()}
    members = sorted({rank for of in by_rank.values() for rank in of})
    for reference in members[:2]:
        crossed: dict[int, Crossing] = {}
        for member in members:
            pairs = [
                Pair(ordinal, of[reference], of[member])
                for ordinal, of in by_rank.items()
                if member > reference and reference in of and member in of
            ]
            found = crossing(pairs, by_name=True)
            if found is not None:
                crossed[member] = found
        if crossed:
            first = min(crossed.values(), key=lambda one: one.first.place)
            place, back = first.first.place, first.second.place
            odd = [rank for rank, one in crossed.items() if one.first.place == place]
            others = [rank for rank in by_rank[place] if rank not in odd]
            fewer = [] if len(odd) == len(others) else min(odd, others, key=len)
            did = _told_crossed(series[place], by_rank[back], back)
            finding = unequal(oracle, _step(series[place]), group, place, did, fewer)
            yield Placed(finding, (group, place))
            return


def _told_crossed(ops: list[Op], later: Mapping[int, Op], back: int) -> dict[int, str]:
    told = _told(ops, by_site=True)
    for rank in told:
        if rank in later:
            told[rank] += f", then #{back} {_by(later[rank])}"
    return told


def _shifted(view: View, oracle: str, group: str, series: Series) -> Iterator[Placed]:
    """Of a run that ended in a deadlock: where a member came to have made a collective more or less
    than the first one, so that from there on operations of different steps met.
    """
    if view.record.ended != "deadlock":
        return
    members = sorted({op.rank for ops in series.values() for op in ops})
    apart: dict[int, Apart] = {}
    for member in members[1:]:
        found = _came_apart(view, series, members[0], member)
        if found is not None and len({op.step for op in series.get(found.place, ())}) > 1:
            apart[member] = found
    if not apart:
        return
    first = min(apart.values(), key=lambda one: (one.step, one.place))
    own = [member for member, one in apart.items() if one == first]
    odd = {0: members[:1], 1: own, None: []}[first.odd]
    ops = series[first.place]
    finding = unequal(oracle, _step(ops), group, first.place, _told(ops), odd)
    yield Placed(finding, (group, first.place))


def _odd_end(series: Series, ranks: Sequence[int], step: int) -> list[int]:
    """Of two members the one that is known to have left its own regular course."""
    if len(ranks) != 2:
        return []
    odd = odd_one(_made(series, ranks[0]), _made(series, ranks[1]), step)
    return [] if odd is None else [ranks[odd]]


def _made(series: Series, rank: int) -> list[Op]:
    return [op for ops in series.values() for op in ops if op.rank == rank]


def _came_apart(view: View, series: Series, one: int, other: int) -> Apart | None:
    last = min(_last_step(view.ranks[rank]) for rank in (one, other))
    return came_apart(_made(series, one), _made(series, other), last, unequal=False)


def _last_step(rank: RankView) -> int:
    return max((step for step, _ in rank.ended_steps()), default=-1)


# In words


def _told(ops: list[Op], *, by_site: bool = False) -> dict[int, str]:
    callers = told_apart([op.enter.caller for op in ops])
    by_step = len({op.step for op in ops if op.has_step}) > 1
    by_root = len({op.enter.peer for op in ops}) > 1
    by_shape = len({op.enter.numel for op in ops}) == 1
    told = {}
    for op, caller in zip(ops, callers, strict=True):
        enter = op.enter
        kind = f"{enter.op} {enter.reduce_op}".strip()
        root = f" of root {enter.peer}" if by_root and enter.peer >= 0 else ""
        when = f" in step {enter.step}" * (by_step and op.has_step)
        what = _whole_shape(op) if by_shape else _shape(op)
        by = f" {_by(op)}" if by_site else f" by {caller}" if caller else ""
        told[op.rank] = f"{kind} of {what}{root}{by}{when}"
    return told


def _by(op: Op) -> str:
    function = op.enter.caller.rpartition(">")[2]
    return f"by {function} at {op.enter.site}" if op.enter.site else f"by {function}"


def _shape(op: Op) -> str:
    return f"{op.enter.dtype}[{op.enter.numel}]" if op.enter.dtype else _whole_shape(op)


def _whole_shape(op: Op) -> str:
    enter = op.enter
    if enter.op == NEW_GROUP:
        return f"ranks {','.join(map(str, enter.values))}"
    if not enter.dtype:
        return "no tensor"
    sizes = enter.shape if len(enter.shape) > 1 else (enter.numel,)
    return f"{enter.dtype}[{','.join(map(str, sizes))}]"
