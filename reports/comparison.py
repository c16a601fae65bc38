"""Two sides under the same scenarios: what became worse, better, or only other. Pure data.

A verdict is ``ok``, ``degraded`` or broken, in that order; ``violation``, ``deadlock``, ``crash``
and ``hang`` are all broken, none of them worse than another: from one to another is a change.
``error`` says nothing of a subject: such a pair is unknown. Sync operations (collectives, sends,
receives) a step are compared, on the leader stage and on the followers, where both runs went their
whole way: ok, degraded, or over a budget.

As JSON: ``format`` (1), ``a`` and ``b`` (what was compared), ``counts`` by change and by
operations, and ``pairs``, each with the fields of ``Pair``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tabulate import tabulate

from reports.matrix import Matrix, mark
from reports.results import Row
from testbed.model.errors import BadInput

FORMAT = 1

Change = Literal["worse", "better", "changed", "same", "unknown"]
Ops = Literal["more", "fewer", "mixed", "same", "not compared"]

_CHANGES: tuple[Change, ...] = ("worse", "unknown", "better", "changed", "same")
_RANKS = {"ok": 0, "degraded": 1}
_BROKEN = 2
_ROLES = ("sync_per_step_leader", "sync_per_step_follower")


@dataclass(frozen=True)
class Pair:
    """One scenario on both sides. subject: "" where each side has one of its own, else the one that
    both have. a, b: the marks. ops_a, ops_b: sync operations a step, on the leader stage and on the
    followers, None where they are not compared. summary, replay: of side b.
    """

    scenario: str
    topology: str
    subject: str
    a: str
    b: str
    change: Change
    ops: Ops
    ops_a: tuple[float, float] | None
    ops_b: tuple[float, float] | None
    summary: str
    replay: str


def compare(a: Matrix, b: Matrix) -> list[Pair]:
    """The pairs, in the order of side a. One subject on each side: they are compared under any
    names; else each with that of its name. What only one side has is left out.

    Raises BadInput where nothing is common to both.
    """
    one_each = len(a.subjects) == len(b.subjects) == 1
    pairs = []
    for before in a.cells:
        after = b.cell(before["scenario"], b.subjects[0] if one_each else before["subject"])
        if after is not None and after["topology"] == before["topology"]:
            pairs.append(_pair(before, after, "" if one_each else before["subject"]))
    if not pairs:
        raise BadInput("the two sides have no scenario in common: nothing can be compared")
    return pairs


def only_one_side(a: Matrix, b: Matrix) -> list[str]:
    """Scenarios with cells on one side alone, such as those that call what the other one lacks."""
    ran = [{cell["scenario"] for cell in side.cells} for side in (a, b)]
    return sorted(ran[0] ^ ran[1])


def _pair(before: Row, after: Row, subject: str) -> Pair:
    ops_a, ops_b = _ops(before), _ops(after)
    if ops_a is None or ops_b is None:
        ops_a = ops_b = None
    return Pair(
        scenario=after["scenario"],
        topology=after["topology"],
        subject=subject,
        a=mark(before),
        b=mark(after),
        change=_change(before, after),
        ops=_more_or_fewer(ops_a, ops_b),
        ops_a=ops_a,
        ops_b=ops_b,
        summary=after["summary"],
        replay=after["replay"],
    )


def _change(before: Row, after: Row) -> Change:
    if "error" in (before["verdict"], after["verdict"]):
        return "unknown"
    was, now = (_RANKS.get(row["verdict"], _BROKEN) for row in (before, after))
    if was != now:
        return "worse" if now > was else "better"
    return "same" if mark(before) == mark(after) else "changed"


def _ops(row: Row) -> tuple[float, float] | None:
    whole = row["verdict"] in _RANKS or row["oracle"] == "budget"
    if not whole or any(role not in row["ops"] for role in _ROLES):
        return None
    leader, follower = (float(row["ops"][role]) for role in _ROLES)
    return leader, follower


def _more_or_fewer(a: tuple[float, float] | None, b: tuple[float, float] | None) -> Ops:
    if a is None or b is None:
        return "not compared"
    more = any(now > was for was, now in zip(a, b, strict=True))
    fewer = any(now < was for was, now in zip(a, b, strict=True))
    if more and fewer:
        return "mixed"
    return "more" if more else "fewer" if fewer else "same"


def worse(pairs: Iterable[Pair], *, strict_ops: bool) -> list[Pair]:
    """Those whose verdict became worse; with ``strict_ops`` also those with more sync operations a
    step in either role, whatever the verdicts.
    """
    return [
        pair
        for pair in pairs
        if pair.change == "worse" or (strict_ops and pair.ops in ("more", "mixed"))
    ]


def tally(pairs: Sequence[Pair]) -> str:
    """``26 scenarios: 2 worse, 24 same; sync operations a step: more in 1, fewer in 20, same in
    3, not compared in 2``."""
    changes = [f"{n} {change}" for change in _CHANGES if (n := _count(pairs, "change", change))]
    kinds = ("more", "fewer", "mixed", "same", "not compared")
    ops = [f"{kind} in {n}" for kind in kinds if (n := _count(pairs, "ops", kind))]
    many = f"{len(pairs)} pair{'s' * (len(pairs) != 1)}"
    return f"{many}: {', '.join(changes)}; sync operations a step: {', '.join(ops)}"


def _count(pairs: Sequence[Pair], field: str, value: str) -> int:
    return sum(getattr(pair, field) == value for pair in pairs)


def for_terminal(pairs: Sequence[Pair]) -> str:
    """The table of what differs, worst first; "" where nothing does."""
    differing = [pair for pair in pairs if pair.change != "same" or pair.ops not in _ALIKE]
    differing.sort(key=lambda pair: _CHANGES.index(pair.change))
    if not differing:
        return ""
    several = any(pair.subject for pair in differing)
    lines = [
        [
            pair.scenario,
            *([pair.subject] if several else []),
            pair.a,
            pair.b,
            "" if pair.change == "same" else pair.change,
            _told(pair.ops_a),
            _told(pair.ops_b),
            "" if pair.ops in _ALIKE else pair.ops,
        ]
        for pair in differing
    ]
    heads = ["scenario", *(["subject"] if several else [])]
    heads += ["A", "B", "verdict", "sync A", "sync B", "sync/step"]
    text: str = tabulate(lines, heads, "simple", disable_numparse=True)
    return text


_ALIKE = ("same", "not compared")


def _told(ops: tuple[float, float] | None) -> str:
    """``4 / 2``: on the leader stage / on the followers."""
    return "" if ops is None else f"{ops[0]:.3g} / {ops[1]:.3g}"


def document(pairs: Sequence[Pair], a: str, b: str) -> dict[str, Any]:
    """As plain JSON values. a, b: what the two sides are."""
    return {
        "format": FORMAT,
        "a": a,
        "b": b,
        "counts": {
            "verdict": {change: _count(pairs, "change", change) for change in _CHANGES},
            "ops": {
                kind: _count(pairs, "ops", kind)
                for kind in ("more", "fewer", "mixed", "same", "not compared")
            },
        },
        "pairs": [asdict(pair) for pair in pairs],
    }
