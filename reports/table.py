"""The table of runs, for a terminal and as Markdown."""

from collections.abc import Sequence

from tabulate import tabulate

from reports.colour import painted
from reports.results import Row, divergence
from testbed.model.errors import printable
from testbed.oracles.judge import NOTHING

HEADERS = (
    "scenario",
    "subject",
    "topology",
    "verdict",
    "first divergence",
    "steps",
    "sync/step",
    "ms",
)
_DIVERGENCE = HEADERS.index("first divergence")
_VERDICT = HEADERS.index("verdict")
_NARROWEST = 24
_BLANK = " (nothing recorded)"


def for_terminal(rows: Sequence[Row], width: int, *, colour: bool = False) -> str:
    """A table of one line per run; the divergence column gives way so that it fits ``width``.

    colour: verdicts in colour.
    """
    cells = [_cells(row) for row in rows]
    without = [[*line[:_DIVERGENCE], "", *line[_DIVERGENCE + 1 :]] for line in cells]
    others = len(_tabulated(without, "simple").split("\n")[1]) - len(HEADERS[_DIVERGENCE])
    room = max(width - others, _NARROWEST)
    for line in cells:
        line[_DIVERGENCE] = shorten(line[_DIVERGENCE], room)
    if colour:
        for line, row in zip(cells, rows, strict=True):
            line[_VERDICT] = painted(line[_VERDICT], row["verdict"])
    return _tabulated(cells, "simple")


def as_markdown(rows: Sequence[Row]) -> str:
    """The same table as Markdown, nothing shortened."""
    return _tabulated([[cell.replace("|", "\\|") for cell in _cells(row)] for row in rows], "pipe")


def as_list(entries: Sequence[tuple[str, str]]) -> str:
    """Names and what they are, one line each, no blanks at the end of a line."""
    plain = [[printable(word) for word in entry] for entry in entries]
    text: str = tabulate(plain, tablefmt="plain", disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _tabulated(cells: list[list[str]], style: str) -> str:
    align = ["left"] * 5 + ["right"] * 3
    text: str = tabulate(
        cells, HEADERS, style, colalign=align if cells else None, disable_numparse=True
    )
    return text


def tally(rows: Sequence[Row]) -> str:
    """``31 runs, 30 as expected: 20 ok, 8 violation, 3 degraded``."""
    if not rows:
        return "no runs"
    kinds = [f"{row['verdict']}{_BLANK * is_blank(row)}" for row in rows]
    counts = sorted(((kinds.count(kind), kind) for kind in set(kinds)), reverse=True)
    as_expected = sum(row["as_expected"] for row in rows)
    listed = ", ".join(f"{count} {kind}" for count, kind in counts)
    return f"{len(rows)} run{'s' * (len(rows) > 1)}, {as_expected} as expected: {listed}"


def is_blank(row: Row) -> bool:
    """Whether no rank recorded anything, so that the run proves nothing."""
    return row["summary"] == NOTHING


def verdict_cell(row: Row) -> str:
    """``ok``, ``violation: agreement``; one that was not expected says what was."""
    text = row["verdict"] + (f": {row['oracle']}" if row["oracle"] else _BLANK * is_blank(row))
    return text if row["as_expected"] else f"✗ {text} (expected {row['expected']})"


def _cells(row: Row) -> list[str]:
    first = divergence(row)
    sync = row["ops"].get("sync_per_step")
    return [
        row["scenario"],
        row["subject"],
        row["topology"],
        verdict_cell(row),
        first.one_line() if first else "",
        str(row["steps"]),
        "" if sync is None else f"{sync:.3g}",
        f"{row['wall_ms']:.0f}",
    ]


def shorten(text: str, room: int) -> str:
    """The text, cut to ``room`` characters with an ellipsis for the rest."""
    return text if len(text) <= room else text[: room - 1] + "…"
