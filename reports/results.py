"""Results as plain JSON: the one form that files, tables and other processes share."""

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from testbed.errors import BadInput, EnvironmentFault, shortened
from testbed.runs import RunResult, shown, told
from testbed.scenario import Scenario
from testbed.verdict import Divergence, Outcome

FORMAT = 1

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Row(TypedDict):
    """One run. id: the case id. ranks: whom the verdict names. first_divergence: as ``Divergence``,
    or None. expected: the expected verdict; expectation: all of it in words, and why. why_not: how
    the run differs from it. steps: scheduler steps of the scenario. wall_ms: milliseconds of the
    case. ops: counts, see ``Verdict.ops``. path: folder of the record. replay: the command that
    runs it again."""

    id: str
    scenario: str
    subject: str
    topology: str
    verdict: str
    oracle: str | None
    step: int | None
    ranks: list[int]
    summary: str
    first_divergence: dict[str, Any] | None
    expected: str
    expectation: str
    as_expected: bool
    why_not: str
    steps: int
    wall_ms: float
    ops: dict[str, Any]
    notes: list[str]
    path: str
    replay: str


def row(result: RunResult) -> Row:
    """A judged run as a row of plain JSON values."""
    scenario, expected = result.scenario, result.expected
    verdict = result.verdict.to_json()
    path = shown(result.path)
    return Row(
        id=scenario.case_id,
        scenario=scenario.name,
        subject=scenario.subject,
        topology=str(scenario.topology),
        verdict=verdict["verdict"],
        oracle=verdict["oracle"],
        step=verdict["step"],
        ranks=verdict["ranks"],
        summary=verdict["summary"],
        first_divergence=verdict["first_divergence"],
        expected=str(expected.verdict),
        expectation=told(expected) + (f": {expected.why}" if expected.why else ""),
        as_expected=result.as_expected,
        why_not=result.why_not,
        steps=scenario.steps,
        wall_ms=round(result.record.wall_ms, 1),
        ops=verdict["ops"],
        notes=verdict["notes"],
        path=path,
        replay=f"{shlex.quote(interpreter())} -m testbed replay {shlex.quote(path)}",
    )


def error_row(scenario: Scenario, reason: str) -> Row:
    """The row of a case that left no record because the testbed or its environment failed."""
    named = [scenario.name, "--subject", scenario.subject]
    return Row(
        id=scenario.case_id,
        scenario=scenario.name,
        subject=scenario.subject,
        topology=str(scenario.topology),
        verdict=str(Outcome.ERROR),
        oracle=None,
        step=None,
        ranks=[],
        summary=reason,
        first_divergence=None,
        expected=str(scenario.expected.verdict),
        expectation=told(scenario.expected),
        as_expected=False,
        why_not=reason,
        steps=scenario.steps,
        wall_ms=0.0,
        ops={},
        notes=[],
        path="",
        replay=f"{shlex.quote(interpreter())} -m testbed run {shlex.join(named)}",
    )


def interpreter() -> str:
    """What to type for this interpreter: ``python`` only where that finds this very one."""
    # Not resolved: the python of a virtual environment is a link to the one it was made with.
    if shutil.which("python") == sys.executable:
        return "python"
    return shown(Path(sys.executable))


def divergence(of: Row) -> Divergence | None:
    """The row's first divergence as the data class it came from."""
    data = of["first_divergence"]
    if data is None:
        return None
    sides = {side: tuple(data[side]) for side in ("majority", "minority")}
    return Divergence(**{**data, **sides})


def document(rows: Sequence[Row], world: int, out: str) -> dict[str, Any]:
    """The whole result of a session. world: hosts of its fleet. out: folder of its records."""
    as_expected = sum(row["as_expected"] for row in rows)
    return {
        "format": FORMAT,
        "world": world,
        "out": out,
        "as_expected": as_expected,
        "not_as_expected": len(rows) - as_expected,
        "runs": list(rows),
    }


def check_json(out: str) -> None:
    """Raise BadInput, before anything runs, for a file that ``write_json`` could not write."""
    if out == "-":
        return
    if not out or "\0" in out:
        raise BadInput(f"--json is {out!r}: give a file, or - for standard output")
    if os.path.isdir(out):
        raise BadInput(f"{shortened(out)}: cannot be written (is a folder): give a file")
    new = not os.path.lexists(out)
    if not new and not os.path.isfile(out):
        return  # a pipe or a device: to open it could wait for its reader
    try:
        # Opened, not asked: permissions alone do not tell of a file system that is read-only.
        os.close(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
        if new:
            os.unlink(out)
    except OSError as error:
        raise BadInput(f"{shortened(out)}: cannot be written ({error.strerror})") from error


def write_json(data: Any, out: str) -> None:
    """Write JSON to the file ``out``, ``-`` being standard output. Raises BadInput if it cannot,
    EnvironmentFault where the disk is full.
    """
    text = msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"
    if out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        kind = EnvironmentFault if error.errno in _FULL else BadInput
        raise kind(f"{shortened(out)}: cannot be written ({error.strerror})") from error
