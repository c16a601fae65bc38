"""The matrix as data: rows of runs by scenario and subject, its JSON file, and the mark of a cell.

The file is one object: ``format`` (1), ``world``, ``out`` (folder of the records), ``subjects``
(the columns), ``scenarios`` (the lines: ``name``, ``topology``, ``report``, ``comment``) and
``cells``, each a ``reports.results.Row`` with its ``mark`` added. Pairs that make no sense
are in ``unfit`` (``scenario``, ``subject``, ``reason``); any other without a cell was not run.
"""

from pathlib import Path
from typing import Any

import msgspec

from reports.results import Row
from testbed.model.errors import BadInput, all_printable

FORMAT = 1

OK, UNFIT = "✓", "-"
LETTERS = {"violation": "V", "deadlock": "D", "crash": "C", "hang": "H", "degraded": "~"}
MEANINGS = {
    OK: "ok, whatever the scenario expects",
    "~": "degraded",
    "V": "violation, of which oracle",
    "D": "deadlock",
    "C": "crash",
    "H": "hang",
    "E": "error of the testbed, nothing said of the subject",
    UNFIT: "the subject lacks what the scenario needs",
}
"""By a mark's first character, in the order of the legend."""

_ORACLES = {
    "agreement": "agr",
    "pairing": "pair",
    "safety": "safe",
    "conservation": "cons",
    "integrity": "integ",
    "progress": "prog",
    "budget": "budg",
    "bounded": "bound",
    "stage-local": "stage",
}


class Line(msgspec.Struct, frozen=True):
    """One scenario of a matrix. topology: as ``pp2tp2``. report: where it was published."""

    name: str
    topology: str
    report: str = ""
    comment: str = ""


class Unfit(msgspec.Struct, frozen=True):
    """A pair that makes no sense: the subject lacks what the scenario needs."""

    scenario: str
    subject: str
    reason: str


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. world: hosts of the fleet. out: folder of the records."""

    format: int = FORMAT
    world: int
    out: str
    subjects: list[str]
    scenarios: list[Line]
    cells: list[Row]
    unfit: list[Unfit] = []

    def cell(self, scenario: str, subject: str) -> Row | None:
        """The cell of that pair, None where it was not run."""
        found = (c for c in self.cells if (c["scenario"], c["subject"]) == (scenario, subject))
        return next(found, None)

    def mark(self, scenario: str, subject: str) -> str:
        """The mark of that pair, "" where it was not run."""
        cell = self.cell(scenario, subject)
        if cell is not None:
            return mark(cell)
        return UNFIT if self.why_unfit(scenario, subject) else ""

    def why_unfit(self, scenario: str, subject: str) -> str:
        """Why the pair makes no sense, "" where it does."""
        places = {(one.scenario, one.subject): one.reason for one in self.unfit}
        return places.get((scenario, subject), "")


def mark(cell: Row) -> str:
    """``✓``, ``V1 agr`` (violation in step 1, oracle agreement), ``D0``, ``~1``, ``E``."""
    verdict = cell["verdict"]
    if verdict == "ok":
        return OK
    if verdict not in LETTERS:
        return "E"
    step = "" if cell["step"] is None else str(cell["step"])
    oracle = cell["oracle"] if verdict == "violation" else None
    return LETTERS[verdict] + step + (f" {_ORACLES.get(oracle, oracle)}" if oracle else "")


def legend(matrix: Matrix) -> str:
    """What the marks in it mean, in one line."""
    cells = matrix.cells
    used = {mark(cell)[0] for cell in cells} | ({UNFIT} if matrix.unfit else set())
    words = [f"{sign} {meaning}" for sign, meaning in MEANINGS.items() if sign in used]
    if used & set(LETTERS.values()):
        words.append("the number is the step")
    oracles = {cell["oracle"] for cell in cells if cell["verdict"] == "violation"}
    words += [f"{short} {name}" for name, short in _ORACLES.items() if name in oracles]
    return "; ".join(words)


def document(matrix: Matrix) -> dict[str, Any]:
    """As plain JSON values, with the mark in each cell."""
    data: dict[str, Any] = all_printable(msgspec.to_builtins(matrix))
    data["cells"] = [{**cell, "mark": mark(cell)} for cell in matrix.cells]
    return data


def load(path: Path) -> Matrix:
    """Read a matrix from its JSON file. Raises BadInput."""
    try:
        data = msgspec.json.decode(path.read_bytes())
        if not isinstance(data, dict) or "cells" not in data:
            raise BadInput(f"{path}: is no matrix: give a file that `matrix --json` wrote")
        if data.get("format") != FORMAT:
            raise BadInput(
                f"{path}: matrix format {data.get('format')!r}, this testbed reads {FORMAT}"
            )
        return msgspec.convert(all_printable(data), Matrix)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:  # also what msgspec finds missing or wrong
        raise BadInput(f"{path}: is no matrix ({error})") from error
