"""This run against an earlier one: ratios only, and what differs between their machines. Pure."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed.bench.document import Document, load
from testbed.bench.tables import Table
from testbed.model.errors import BadInput

Row = dict[str, Any]


class Figure(NamedTuple):
    """One figure. name: what tells it from the others of its section. better: which way is."""

    section: str
    name: str
    unit: str
    value: float
    better: str


def differences(now: Document, before: Document) -> list[str]:
    """What of machine and settings is not the same, one line each."""
    lines = [
        f"the machines differ in {key}: {before['machine'].get(key)} then, {value} now"
        for key, value in now["machine"].items()
        if before["machine"].get(key) != value
    ]
    names = ("topology", "backend", "storage", "seed", "plans")
    ours, theirs = now["parameters"], before["parameters"]
    lines += [
        f"the settings differ in {name}: {theirs.get(name)} then, {ours.get(name)} now"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
    for which, document in (("then", before), ("now", now)):
        if not document["load"]["calm"]:
            lines.append(f"the machine was busy {which}")
    return lines


def earlier(path: str) -> Document:
    """An earlier run, looked through to the last figure. Raises BadInput for whatever is none."""
    if not path:
        raise BadInput("--compare is empty: give a bench.json of this testbed")
    found = load(Path(path))
    try:
        differences(found, found)
        broken = [figure.name for figure in figures(found) if not _is_number(figure.value)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{path}: no benchmark of this testbed ({type(error).__name__}: {error})"
        ) from error
    if broken:
        raise BadInput(f"{path}: no benchmark of this testbed ({broken[0]} is no number)")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def table(now: Document, before: Document) -> Table:
    """Every figure that both runs have, as now / then."""
    old = {figure[:3]: figure.value for figure in figures(before)}
    cells = [
        [
            figure.section,
            figure.name,
            figure.unit,
            f"{figure.value / old[figure[:3]]:.2f}",
            figure.better,
        ]
        for figure in figures(now)
        if old.get(figure[:3])
    ]
    heads = ["section", "figure", "of", "now / then", "better is"]
    notes = differences(now, before)
    if not cells:
        notes.append("the runs have no figure in common: nothing to compare")
    return Table("Compared with the earlier run", heads, cells, 3, notes)


def figures(document: Document) -> Iterator[Figure]:
    """The figures that are compared."""
    sections = document["sections"]
    tellers: dict[str, Callable[[Any], Iterator[Figure]]] = {
        "cost": _cost,
        "stall": _stall,
        "throughput": _throughput,
        "curve": _curve,
        "scaling": _scaling,
    }
    for name, tell in tellers.items():
        if sections.get(name):
            yield from tell(sections[name])


def _cost(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        name = f"{row['topology']} {row['subject']} {row['way']} {row['role']}"
        yield Figure("cost", name, "median us", row["median_us"], "lower")


def _stall(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        name = f"{row['topology']} {row['subject']} {row['role']} skew {row['skew_us']:.0f} us"
        yield Figure("stall", name, "stall us", row["stall_median_us"], "lower")


def _throughput(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        name = f"{row['topology']} {row['length']} {row['subject']}"
        yield Figure("throughput", name, "tokens/s", row["tokens_per_s"]["median"], "higher")


def _curve(found: Row) -> Iterator[Figure]:
    pair = f"{found['topology']} {found['better']} over {found['base']}"
    for point in found["points"]:
        name = f"{pair} at {point['step_us']:.0f} us"
        yield Figure("curve", name, "1 + gain", 1 + point["gain"]["median"], "higher")


def _scaling(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        name = f"{row['topology']} {row['subject']} {row['way']}"
        yield Figure("scaling", name, "median us", row["median_us"], "lower")
