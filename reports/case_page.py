"""What the page shows of one case, as HTML: its divergence, timeline, story and steps."""

from collections import defaultdict
from typing import NamedTuple

from reports.ranks import ranged
from reports.results import Row
from reports.story import story
from reports.templates import render
from reports.timeline import Scene, scene, to_svg
from testbed.model.verdict import Divergence
from testbed.sessions.result import RunResult

MAX_CELLS = 4000


class Side(NamedTuple):
    """Ranks that did the same at the first divergence. name: minority, majority or empty."""

    name: str
    ranks: str
    did: str


class StepRow(NamedTuple):
    """One step as words: what each rank did, in the order of ``ranks``."""

    step: str
    cells: tuple[tuple[str, ...], ...]


def case_page(row: Row, result: RunResult, trace: str) -> str:
    """The piece of HTML. trace: where its trace lies, an address relative to the page."""
    seen = scene(result)
    first = result.verdict.first_divergence
    return render(
        "case.html",
        row=row,
        comment=result.scenario.comment,
        first=first,
        sides=_sides(first),
        timeline=to_svg(seen, _aloud(row, first)),
        scene=seen,
        ranks=sorted(seen.lanes),
        steps=_in_words(seen),
        story=story(result),
        trace=trace,
    )


def _aloud(row: Row, first: Divergence | None) -> str:
    where = f", first divergence: {first.one_line()}" if first else ""
    return f"Timeline of {row['id']}: {row['verdict']}{where}"


def _sides(first: Divergence | None) -> list[Side]:
    """The minority first, as everywhere."""
    if first is None:
        return []
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, did in first.did.items():
        number = int(rank)
        name = "minority" if number in first.minority else "majority"
        groups[name if first.minority and first.majority else "", did].append(number)
    found = [Side(name, ranged(ranks), did) for (name, did), ranks in groups.items()]
    return sorted(found, key=lambda side: side.name != "minority")


def _in_words(seen: Scene) -> list[StepRow]:
    """The timeline for those who do not look at it; nothing where it would be a book."""
    if len(seen.steps) * len(seen.lanes) > MAX_CELLS:
        return []
    cells: dict[tuple[int, int], list[str]] = defaultdict(list)
    for bar in seen.bars:
        cells[bar.step, bar.rank].append(bar.told.partition(": ")[2])
    for mark in seen.marks:
        cells[mark.step, mark.rank].append(mark.told.partition(": ")[2])
    return [
        StepRow(
            "start" if step < 0 else str(step),
            tuple(tuple(cells[step, rank]) for rank in sorted(seen.lanes)),
        )
        for step in seen.steps
    ]
