"""The matrix on a terminal: one line a scenario, one column a subject."""

from collections.abc import Sequence
from itertools import groupby

from tabulate import tabulate

from reports.matrix import OK, UNFIT, Matrix, legend
from reports.results import Row

_RELEASE = "sglang=="


def for_terminal(matrix: Matrix, width: int) -> str:
    """The table in as many parts, one below the other, as ``width`` asks for, and the legend."""
    parts = [_tabulated(matrix, subjects) for subjects in _in_parts(matrix, width)]
    return "\n\n".join([*parts, legend(matrix)])


def tally(cells: Sequence[Row]) -> str:
    """``78 cells: 50 ok, 20 degraded, 8 violation``."""
    kinds = [cell["verdict"] for cell in cells]
    counts = sorted(((kinds.count(kind), kind) for kind in set(kinds)), reverse=True)
    listed = ", ".join(f"{count} {kind}" for count, kind in counts)
    return f"{len(cells)} cell{'s' * (len(cells) != 1)}: {listed}"


def errors(cells: Sequence[Row]) -> list[str]:
    """One line for each reason for which cells could not be filled, with the cells it is for."""
    failed = sorted(
        (cell for cell in cells if cell["verdict"] == "error"),
        key=lambda cell: (cell["subject"], cell["summary"]),
    )
    told = []
    for (subject, reason), same in groupby(failed, lambda c: (c["subject"], c["summary"])):
        names = [cell["scenario"] for cell in same]
        which = names[0] if len(names) == 1 else f"{len(names)} scenarios"
        told.append(f"E {subject}, {which}: {reason}")
    return told


def heading(subject: str) -> str:
    """A subject over its column, in several short lines; a release by its number."""
    short = subject.removeprefix(_RELEASE)
    return short.replace(":", "\n:").replace(".post", "\n.post") if short != subject else subject


def _in_parts(matrix: Matrix, width: int) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for subject in matrix.subjects:
        wider = [*parts[-1], subject]
        if parts[-1] and max(map(len, _tabulated(matrix, wider).split("\n"))) > width:
            parts.append([subject])
        else:
            parts[-1] = wider
    return parts


def _sound(marks: list[str]) -> str:
    """``14/26``, of those that were run."""
    run = [mark for mark in marks if mark not in ("", UNFIT)]
    return f"{run.count(OK)}/{len(run)}"


def _tabulated(matrix: Matrix, subjects: list[str]) -> str:
    lines = []
    for line in matrix.scenarios:
        lines.append([line.name, *(matrix.mark(line.name, subject) for subject in subjects)])
    columns = [[line[place] for line in lines] for place in range(1, len(subjects) + 1)]
    lines.append([OK, *(_sound(column) for column in columns)])
    text: str = tabulate(
        lines, ["scenario", *map(heading, subjects)], "simple", disable_numparse=True
    )
    return text
