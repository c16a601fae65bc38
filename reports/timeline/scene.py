"""What is to be seen on a timeline: bars, links and marks, placed by rank, step and slot.

A *slot* is a place inside a step's column: the rounds in which anything happened in that step, on
any rank, in order. No pixels here.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from reports.timeline.rounds import Item, rounds
from testbed.analysis import standing
from testbed.analysis.logical_time import channel
from testbed.analysis.view import Op, RankView, View
from testbed.model.events import Begin, Block, Complete, Fired, Raised, Sync
from testbed.model.topology import Topology
from testbed.model.verdict import Divergence
from testbed.oracles.endings import signal_name
from testbed.sessions.result import RunResult

MAX_BARS = 6000
"""More than this makes no picture; steps farthest from the divergence are left out."""

_FEW = 6

START = -1
"""The column before the first step; there only if something happened in it."""

BarKind = Literal["collective", "send", "recv", "wait", "sync", "block"]
MarkKind = Literal["ready", "done", "fault", "raised"]
Side = Literal["", "minority", "majority"]
Column = dict[int, int]
"""Round -> slot, in order."""


class Bar(NamedTuple):
    """Something that kept a rank busy. first, last: slots. at: channel and ordinal of an operation,
    else None. model: of the model's own traffic. label: a word or two; told: all of it, a line.
    """

    rank: int
    step: int
    first: int
    last: int
    kind: BarKind
    model: bool
    stuck: bool
    side: Side
    at: tuple[str, int] | None
    label: str
    told: str


class Mark(NamedTuple):
    """Something that takes no time. slot: after which slot of the step it came, -1: at its start.
    number: how many of that kind there."""

    rank: int
    step: int
    slot: int
    kind: MarkKind
    number: int
    told: str


class Link(NamedTuple):
    """A message from a bar to a bar, or a collective's members; indices of bars."""

    kind: Literal["message", "collective"]
    start: int
    end: int


class Lane(NamedTuple):
    """How far a rank came. ended: in a word or two. well: whether it left its loop. step: its last
    one.
    """

    ended: str
    well: bool
    step: int


class Wait(NamedTuple):
    """Who waits for whom in the end. cycle: of a proven deadlock, part of the cycle or the wait for
    a rank that has left its loop; else merely behind.
    """

    rank: int
    awaited: int
    cycle: bool
    told: str


@dataclass(frozen=True)
class Scene:
    """All of it. steps: the columns shown; slots: of each, how many. left_out: steps not shown.
    lanes: by rank. sides: of the first divergence.
    """

    topology: Topology
    steps: tuple[int, ...]
    slots: dict[int, int]
    left_out: int
    lanes: dict[int, Lane]
    bars: tuple[Bar, ...]
    links: tuple[Link, ...]
    marks: tuple[Mark, ...]
    waits: tuple[Wait, ...]
    sides: dict[int, Side]
    divergence: Divergence | None


def scene(result: RunResult) -> Scene:
    """The scene of a judged run."""
    view = View(result.record)
    first = result.verdict.first_divergence
    busy = rounds(view)
    steps, left_out = _chosen(view, busy, first)
    columns = _columns(busy, steps)
    sides = _sides(first)
    bars = tuple(
        _bar(rank, item, columns[item.step], first, sides)
        for rank, items in busy.items()
        for item in items
        if item.step in columns
    )
    return Scene(
        topology=view.topology,
        steps=steps,
        slots={step: len(columns[step]) for step in steps},
        left_out=left_out,
        lanes={rank: _lane(view, rank) for rank in range(view.topology.size)},
        bars=bars,
        links=tuple(_links(bars)),
        marks=tuple(mark for mark in _marks(view, busy, columns) if mark.step in columns),
        waits=tuple(_waits(view)),
        sides=sides,
        divergence=first,
    )


# Columns


def _chosen(
    view: View, busy: dict[int, list[Item]], first: Divergence | None
) -> tuple[tuple[int, ...], int]:
    """As many steps as make a picture, those nearest to the divergence, and how many are left."""
    sizes: dict[int, int] = dict.fromkeys(view.steps, 0)
    for rank in view.ranks.values():
        if any(event.step == START and isinstance(event, Fired) for event in rank.record.events):
            sizes[START] = 0
    for items in busy.values():
        for item in items:
            sizes[item.step] = sizes.get(item.step, 0) + 1
    # A lane takes room in a column even where it is idle.
    weights = {step: size + view.topology.size for step, size in sizes.items()}
    total = sum(weights.values())
    steps = sorted(weights)
    middle = first.step if first is not None else steps[0]
    low, high = 0, len(steps)
    while total > MAX_BARS and high - low > 1:
        # What led there says more than what followed.
        if 2 * (middle - steps[low]) > steps[high - 1] - middle:
            total -= weights[steps[low]]
            low += 1
        else:
            high -= 1
            total -= weights[steps[high]]
    return tuple(steps[low:high]), len(steps) - (high - low)


def _columns(busy: dict[int, list[Item]], steps: Iterable[int]) -> dict[int, Column]:
    """Of each step the rounds in which something was left, each with its slot."""
    left: dict[int, set[int]] = {step: set() for step in steps}
    for items in busy.values():
        for item in items:
            if item.step in left:
                left[item.step].add(item.left)
    return {step: {now: slot for slot, now in enumerate(sorted(left[step]))} for step in left}


# Bars


def _sides(first: Divergence | None) -> dict[int, Side]:
    if first is None:
        return {}
    sides: dict[int, Side] = {int(rank): "majority" for rank in first.did}
    return sides | dict.fromkeys(first.minority, "minority")


def _bar(
    rank: int, item: Item, column: Column, first: Divergence | None, sides: dict[int, Side]
) -> Bar:
    last = column[item.left]
    at = None
    side: Side = ""
    if isinstance(item.what, Op) and not item.what.is_wait:
        at = (str(channel(item.what)), item.what.enter.ordinal)
        if first is not None and at == (first.channel, first.ordinal):
            side = sides.get(rank, "")
    return Bar(
        rank=rank,
        step=item.step,
        first=_first_slot(item, column),
        last=len(column) - 1 if item.stuck else last,
        kind=_kind(item.what),
        model=isinstance(item.what, Op) and item.what.is_model,
        stuck=item.stuck,
        side=side,
        at=at,
        label=_label(item.what),
        told=f"rank {rank}, step {item.step}: {_told(item)}",
    )


def _first_slot(item: Item, column: Column) -> int:
    """That of the first round, from when it was entered on, in which anything happened."""
    now = item.entered
    while now not in column:  # at the latest the one in which it was left is there
        now += 1
    return column[now]


def _kind(what: Op | Sync | Block) -> BarKind:
    if isinstance(what, Sync):
        return "sync"
    if isinstance(what, Block):
        return "block"
    if what.is_wait:
        return "wait"
    return "send" if what.is_send else "recv" if what.is_recv else "collective"


def _label(what: Op | Sync | Block) -> str:
    if isinstance(what, Sync):
        return what.key
    if isinstance(what, Block):
        return what.queue
    values = what.returned if what.is_recv or what.is_collective else what.enter.values
    return ",".join(map(str, (values or [])[:3]))


def _told(item: Item) -> str:
    what = item.what
    never = ", never came back" if item.stuck else ""
    if isinstance(what, Sync):
        early = f", told {what.stall} steps early" if what.stall > 0 else ""
        return f"waits for the event of {what.key}{early}{never}"
    if isinstance(what, Block):
        return f"waits for an item of its empty {what.queue} queue{never}"
    return told_op(what) + never


def told_op(op: Op) -> str:
    """``all_reduce #3 of tp[pp0], MIN, int32 x 2, put 1,0, got 0,0 (agree at file.py:3)``."""
    enter = op.enter
    words = [f"{enter.op} #{enter.ordinal} of {enter.group}"]
    if enter.peer >= 0:
        words[0] += f" {_way(op)} rank {enter.peer}"
    if enter.reduce_op:
        words.append(enter.reduce_op)
    if enter.numel and enter.dtype:
        words.append(f"{enter.dtype} x {enter.numel}")
    if enter.values and not op.is_recv:
        words.append(f"put {_listed(enter.values)}")
    if op.returned and not op.is_send:
        words.append(f"got {_listed(op.returned)}")
    return ", ".join(words) + standing.site(enter)


def _way(op: Op) -> str:
    if op.enter.tag < 0:
        return "with root"
    return "to" if op.pipe.src == op.rank else "from"


def _listed(values: list[int]) -> str:
    return ",".join(map(str, values))


# Links


def _links(bars: tuple[Bar, ...]) -> Iterator[Link]:
    met: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, bar in enumerate(bars):
        if bar.at is not None:
            met[bar.at].append(place)
    for places in met.values():
        # A message has one bar at either end; what is no message is a collective.
        ends = {bars[place].kind: place for place in places}
        if "send" in ends and "recv" in ends:
            yield Link("message", ends["send"], ends["recv"])
        elif "collective" in ends:
            yield from (Link("collective", one, other) for one, other in pairwise(places))


# Marks


def _marks(view: View, busy: dict[int, list[Item]], columns: dict[int, Column]) -> Iterator[Mark]:
    for rank in view.ranks.values():
        gathered: dict[tuple[int, int, MarkKind], list[str]] = {}
        for step, slot, kind, told in _happened(rank, busy[rank.rank], columns):
            gathered.setdefault((step, slot, kind), []).append(told)
        for (step, slot, kind), each in gathered.items():
            yield Mark(rank.rank, step, slot, kind, len(each), _gathered(rank.rank, step, each))


def _gathered(rank: int, step: int, each: list[str]) -> str:
    when = f"step {step}" if step >= 0 else "before the first step"
    more = f" and {len(each) - _FEW} more" if len(each) > _FEW else ""
    return f"rank {rank}, {when}: {', '.join(each[:_FEW])}{more}"


def _happened(
    rank: RankView, items: list[Item], columns: dict[int, Column]
) -> Iterator[tuple[int, int, MarkKind, str]]:
    """Step, slot, kind and words of all that takes no time."""
    known_ready: set[str] = set()
    before = 0
    for place, event in enumerate(rank.record.events):
        while before < len(items) and items[before].place < place:
            before += 1
        slot = -1
        if _busy_in(event.step, items[:before][-1:], columns):
            slot = columns[event.step][items[before - 1].left]
        if isinstance(event, Begin):
            for queue, key in _ready(event):
                if key not in known_ready:
                    known_ready.add(key)
                    yield event.step, -1, "ready", f"{queue} {key} ready"
        elif isinstance(event, Complete):
            early = "" if event.ready else " although its event was not ready"
            yield event.step, slot, "done", f"{event.queue} {event.key} completed{early}"
        elif isinstance(event, Fired):
            detail = f": {event.detail}" if event.detail else ""
            yield event.step, slot, "fault", f"fault {event.fault} ({event.kind}){detail}"
        elif isinstance(event, Raised):
            yield event.step, slot, "raised", f"raised {event.type}: {_first_line(event.message)}"
    if rank.record.exit == "signal":
        slot = columns[rank.step][items[-1].left] if _busy_in(rank.step, items, columns) else -1
        yield rank.step, slot, "raised", f"died by {signal_name(rank.record.signal)}"


def _busy_in(step: int, items: list[Item], columns: dict[int, Column]) -> bool:
    """Whether the last of those items was in that step, and the step is shown."""
    return bool(items) and items[-1].step == step and step in columns


def _ready(event: Begin) -> Iterator[tuple[str, str]]:
    for queue, acks in (("write", event.write), ("load", event.load)):
        for key, ready in acks:
            if ready:
                yield queue, str(key)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]


# How it ended


def _lane(view: View, rank: int) -> Lane:
    if rank not in view.ranks:
        return Lane("left no record", False, START)
    its = view.ranks[rank]
    if its.record.exit == "signal":
        return Lane(f"died by {signal_name(its.record.signal)}", False, its.step)
    if its.record.exit == "raised":
        return Lane(f"raised {its.raised.type}" if its.raised else "raised", False, its.step)
    if its.done:
        return Lane("done", True, its.step)
    return Lane("left its loop" if its.final else "stopped", its.final is not None, its.step)


def _waits(view: View) -> Iterator[Wait]:
    """Of a run that did not finish: what each rank waits for, a proven cycle first."""
    proof = view.deadlock if view.record.ended == "deadlock" else None
    if proof is not None:
        # Of several ranks awaited, the one that follows in the cycle; or it ends at one that left.
        following = [wait.rank for wait in proof.cycle[1:]] + [proof.cycle[0].rank]
        for wait, after in zip(proof.cycle, following, strict=True):
            awaited = after if after in wait.waits_for else next(iter(proof.ended), None)
            if awaited is not None and awaited != wait.rank:
                yield Wait(wait.rank, awaited, True, str(wait))
        for wait in proof.behind:
            for other in [rank for rank in wait.waits_for if rank in view.ranks][:1]:
                yield Wait(wait.rank, other, False, str(wait))
        return
    if view.record.ended == "finished":
        return
    for rank in view.ranks.values():
        awaited_ranks = [other for other in standing.waits_for(view, rank) if other in view.ranks]
        for other in () if rank.done else awaited_ranks[:1]:
            told = f"rank {rank.rank} {standing.told(view, rank)}"
            yield Wait(rank.rank, other, False, told)
