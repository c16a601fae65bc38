"""The matrix as one HTML page that needs nothing else: no script, no other file, no network.

A cell shows its summary under the pointer and leads to its story further down: what happened, the
first divergence, the command that runs it again.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from reports.matrix import OK, Matrix, legend
from reports.matrix_table import heading, tally
from reports.results import Row, divergence
from reports.templates import shown
from testbed.model.errors import BadInput, printable

_TEMPLATE = "matrix_page.html.j2"
_UPSTREAM = "sgl-project/sglang"
_NUMBER = re.compile(r"([\w.-]+/[\w.-]+)?#(\d+)")

_KINDS = {"ok": "ok", "degraded": "degraded", "error": "error"}


class Told(NamedTuple):
    """One cell as the page shows it. kind: its class in the style sheet. anchor: of its story, ""
    where there is none to tell. first: the first divergence, a line a side."""

    mark: str
    kind: str
    title: str
    anchor: str = ""
    row: Row | None = None
    first: tuple[str, ...] = ()


def as_html(matrix: Matrix) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html", "j2"]),
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    lines = []
    for line in matrix.scenarios:
        cells = [_told(matrix, line.name, subject) for subject in matrix.subjects]
        lines.append((line, linked(line.report), cells))
    return environment.get_template(_TEMPLATE).render(
        matrix=matrix,
        headings=[heading(subject) for subject in matrix.subjects],
        lines=lines,
        stories=[told for _, _, cells in lines for told in cells if told.anchor],
        tally=tally(matrix.cells),
        legend=legend(matrix),
    )


def write(matrix: Matrix, out: Path) -> None:
    """Write the page. Raises BadInput if it cannot be written."""
    try:
        out.write_text(as_html(matrix), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{out}: cannot be written ({error.strerror})") from error


def linked(report: str) -> Markup:
    """A report with its issue numbers as links, all else escaped."""
    return Markup("").join(_pieces(printable(report)))


def _pieces(report: str) -> Iterator[Markup]:
    end = 0
    for found in _NUMBER.finditer(report):
        yield Markup.escape(report[end : found.start()])
        # The address leads to a pull request of that number as well.
        address = f"https://github.com/{found[1] or _UPSTREAM}/issues/{found[2]}"
        yield Markup('<a href="{}">{}</a>').format(address, found[0])
        end = found.end()
    yield Markup.escape(report[end:])


def _told(matrix: Matrix, scenario: str, subject: str) -> Told:
    cell = matrix.cell(scenario, subject)
    short = matrix.mark(scenario, subject)
    if cell is None:
        return Told(short, "unfit", matrix.why_unfit(scenario, subject))
    first = divergence(cell)
    return Told(
        mark=short,
        kind=_KINDS.get(cell["verdict"], "broken"),
        title=f"{cell['verdict']}: {cell['summary']}",
        anchor="" if short == OK else re.sub(r"[^\w.-]", "_", cell["id"]),
        row=cell,
        first=(first.where(), *first.sides()) if first else (),
    )
