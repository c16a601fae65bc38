"""The first place where two recorded runs differ.

Compared is what the ranks did, event by event: neither times nor line numbers. Of the ranks that
come apart, the first is the one whose event lies in the earliest step, there the one that comes
first in the logical order of the operations before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from reports.ranks import ranged
from reports.timeline.rounds import rounds
from reports.timeline.scene import told_op
from testbed.analysis.view import RankView, View
from testbed.model.errors import printable
from testbed.model.events import About, Begin, End, Enter, Event, Exit, Final, Raised
from testbed.model.scenario import to_object
from testbed.sessions.result import RunResult
from testbed.sessions.store import shown

# Neither do they tell what a rank did: clocks, source lines, digests of Python objects.
_IGNORED = frozenset({"t_us", "site", "traceback", "born_us", "versions"})
_LINE_LIMIT = 200


@dataclass(frozen=True)
class Difference:
    """Whether two runs differ, and all of it in words."""

    differ: bool
    told: str


class _Apart(NamedTuple):
    """Where one rank comes apart. place: of its event. order: who is first."""

    order: tuple[int, int, int]
    rank: int
    place: int
    one: Event | None
    other: Event | None


def compared(one: RunResult, other: RunResult) -> Difference:
    """Compare two runs. A run that another scenario, subject or topology made is compared all the
    same, and what was asked for differently is told first.
    """
    views = View(one.record), View(other.record)
    asked = list(_asked(one, other))
    apart = sorted(_apart(*views))
    verdicts = (_verdict(one), _verdict(other))
    lines = [f"A: {shown(one.path)}", f"B: {shown(other.path)}", ""]
    if asked:
        lines += ["asked for differently:", *(f"  {line}" for line in asked), ""]
    if apart:
        first = apart[0]
        step = first.order[0]
        when = f"step {step}" if step >= 0 else "before the first step"
        lines += [
            f"first difference: {when}, rank {first.rank}, event {first.place}",
            f"  A: {_told(views[0], first.rank, first.one)}",
            f"  B: {_told(views[1], first.rank, first.other)}",
        ]
        lines += list(_others(apart, set(views[0].ranks) | set(views[1].ranks)))
    else:
        lines.append("every rank did the same")
    same_verdict = verdicts[0] == verdicts[1]
    lines += ["", f"verdict of A: {verdicts[0]}"]
    lines.append("verdict of B: the same" if same_verdict else f"verdict of B: {verdicts[1]}")
    return Difference(bool(apart or asked) or not same_verdict, printable("\n".join(lines)))


def _asked(one: RunResult, other: RunResult) -> Iterator[str]:
    """Keys of the scenario that differ; the name and comment say nothing of what runs."""
    asked, otherwise = (to_object(run.scenario) for run in (one, other))
    for key, value in asked.items():
        if key not in ("name", "comment", "expect") and otherwise[key] != value:
            yield f"{key}: A {_short(str(value))}, B {_short(str(otherwise[key]))}"


def _apart(one: View, other: View) -> Iterator[_Apart]:
    orders = rounds(one), rounds(other)
    for rank in sorted(set(one.ranks) | set(other.ranks)):
        pair = zip_longest(_events(one, rank), _events(other, rank))
        for place, (mine, theirs) in enumerate(pair):
            if _plain(mine) != _plain(theirs):
                event = mine or theirs
                assert event is not None
                depth = min(_round(order, rank, place) for order in orders)
                yield _Apart((event.step, depth, rank), rank, place, mine, theirs)
                break


def _events(view: View, rank: int) -> tuple[Event, ...]:
    return view.ranks[rank].record.events if rank in view.ranks else ()


def _round(order: dict[int, Any], rank: int, place: int) -> int:
    """The round of the last thing that kept the rank busy before or at that event."""
    before = [item.entered for item in order.get(rank, []) if item.place <= place]
    return before[-1] if before else -1


def _plain(event: Event | None) -> tuple[Any, ...] | None:
    if event is None:
        return None
    values = event._asdict().items()
    return (type(event), *(_value(value) for key, value in values if key not in _IGNORED))


def _value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _told(view: View, rank: int, event: Event | None) -> str:
    if event is None:
        return "nothing more" if rank in view.ranks else "there is no such rank"
    if isinstance(event, Enter):
        ops = view.ranks[rank].ops
        return next(told_op(op) for op in ops if op.enter is event)
    if isinstance(event, Exit):
        entered = _open_before(view.ranks[rank], event)
        return f"{entered} returned {event.values}"
    if isinstance(event, Raised):
        return _short(f"raised {event.type}: {' '.join(event.message.split())}")
    name = {Begin: "step begins with", End: "step ends with", Final: "books at the end"}.get(
        type(event), type(event).__name__.lower()
    )
    fields = (
        f"{key} {value}"
        for key, value in event._asdict().items()
        if key not in _IGNORED and key != "step" and value not in ([], {}, "")
    )
    return _short(f"{name}: {', '.join(fields)}" if not isinstance(event, About) else name)


def _open_before(rank: RankView, event: Exit) -> str:
    entered = [one for one in rank.record.events[: _index(rank, event)] if isinstance(one, Enter)]
    if not entered:
        return "an operation"
    return f"{entered[-1].op} #{entered[-1].ordinal} of {entered[-1].group}"


def _index(rank: RankView, event: Event) -> int:
    return next(place for place, one in enumerate(rank.record.events) if one is event)


def _others(apart: list[_Apart], ranks: set[int]) -> Iterator[str]:
    later: dict[int, list[int]] = {}
    for one in apart[1:]:
        later.setdefault(one.order[0], []).append(one.rank)
    for step, those in later.items():
        yield f"  then {ranged(those)}, from step {step} on"
    same = ranks - {one.rank for one in apart}
    if same:
        yield f"  no difference on {ranged(same)}"


def _verdict(run: RunResult) -> str:
    verdict = run.verdict
    words = [str(verdict.outcome)]
    if verdict.oracle:
        words.append(f"by {verdict.oracle}")
    if verdict.step is not None:
        words.append(f"at step {verdict.step}")
    return f"{' '.join(words)}: {verdict.summary}"


def _short(text: str) -> str:
    return text if len(text) <= _LINE_LIMIT else text[: _LINE_LIMIT - 1] + "…"
