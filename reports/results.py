"""Results as plain JSON: the one form that files, tables and other processes share."""

import errno
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from testbed.analysis.logical_time import channel
from testbed.analysis.view import Op, RankView
from testbed.console import output
from testbed.model.errors import BadInput, EnvironmentFault, all_printable, shortened
from testbed.model.exit_status import AS_EXPECTED
from testbed.model.record import left_behind
from testbed.model.scenario import Scenario
from testbed.model.verdict import Divergence, Outcome
from testbed.sessions.result import LOST, RunResult, told
from testbed.sessions.store import shown

FORMAT = 2
"""1: without ``operation``, and without ``written``."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Row(TypedDict):
    """One run. id: the case id. ranks: whom the verdict names. first_divergence: as ``Divergence``,
    or None. operation: that at which it diverged, or the last one before, with its group; empty
    where nothing diverged. expected: the expected verdict; expectation: all of it in words, and
    why. why_not: how the run differs from it. steps: scheduler steps of the scenario. wall_ms:
    milliseconds of the case. ops: counts, see ``Verdict.ops``. path: folder of the record. replay:
    the command that runs it again."""

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
    operation: str
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
    """A judged run as a row of plain JSON values, every string in it printable."""
    scenario, expected = result.scenario, result.expected
    verdict = result.verdict.to_json()
    path = shown(result.path)
    made = Row(
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
        operation=operation(result),
        expected=str(expected.verdict),
        expectation=told(expected) + (f": {expected.why}" if expected.why else ""),
        as_expected=result.as_expected,
        why_not=result.why_not,
        steps=scenario.steps,
        wall_ms=round(result.record.wall_ms, 1),
        ops=verdict["ops"],
        notes=[*verdict["notes"], *left_behind(result.record)],
        path=path,
        replay=shlex.join([interpreter(), "-m", "testbed", *_again(result)]),
    )
    return _shown(made)


def _shown(made: Row) -> Row:
    """A row is there to be shown: names, comments and messages in it are as their authors wrote
    them.
    """
    row: Row = all_printable(made)
    return row


def _again(result: RunResult) -> list[str]:
    if result.path != Path(LOST):
        return ["replay", shown(result.path)]
    scenario = result.scenario
    sizes = [f"--{axis}={getattr(scenario.topology, axis)}" for axis in ("pp", "tp", "cp")]
    return ["run", scenario.name, f"--subject={scenario.subject}", *sizes]


def operation(result: RunResult) -> str:
    """``recv #0 of pp[tp0]``: the operation at which the run diverged.

    For a divergence elsewhere (a queue, the rank itself) the last one that its first odd rank had
    entered: ``after recv #0 of pp[tp0]``, ``before any operation``.
    """
    first = result.verdict.first_divergence
    if first is None:
        return ""
    ranks = {share.rank: RankView(share) for share in result.record.ranks}
    odd = [ranks[rank] for rank in (*first.minority, *first.majority) if rank in ranks]
    for rank in odd:
        for op in rank.ops:
            if not op.is_wait and (str(channel(op)), op.enter.ordinal) == (
                first.channel,
                first.ordinal,
            ):
                return _operation(op)
    before = [op for op in odd[0].ops if op.step <= first.step and _counts(op)] if odd else []
    return f"after {_operation(before[-1])}" if before else "before any operation"


def _counts(op: Op) -> bool:
    return not (op.is_wait or op.is_model)


def _operation(op: Op) -> str:
    return f"{op.enter.op} #{op.enter.ordinal} of {op.enter.group}"


def error_row(scenario: Scenario, reason: str) -> Row:
    """The row of a case that left no record because the testbed or its environment failed."""
    named = [scenario.name, "--subject", scenario.subject]
    made = Row(
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
        operation="",
        expected=str(scenario.expected.verdict),
        expectation=told(scenario.expected),
        as_expected=False,
        why_not=reason,
        steps=scenario.steps,
        wall_ms=0.0,
        ops={},
        notes=[],
        path=LOST,
        replay=f"{shlex.quote(interpreter())} -m testbed run {shlex.join(named)}",
    )
    return _shown(made)


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


class Document(TypedDict):
    """The whole result of a session. format: ``FORMAT``. written: when, ISO 8601. world: hosts of
    its fleet, 0 where none ran. out: folder of its records, empty where none were kept."""

    format: int
    written: str
    world: int
    out: str
    as_expected: int
    not_as_expected: int
    runs: list[Row]


def document(rows: Sequence[Row], world: int, out: str) -> Document:
    """The document of these rows."""
    as_expected = sum(row["as_expected"] for row in rows)
    return Document(
        format=FORMAT,
        written=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        world=world,
        out=out,
        as_expected=as_expected,
        not_as_expected=len(rows) - as_expected,
        runs=list(rows),
    )


def schema() -> dict[str, Any]:
    """The JSON schema of ``results.json``; ``reports/results.schema.json`` is this, written down by
    ``python -m reports.results``.
    """
    made = msgspec.json.schema(Document)
    made["$defs"]["Document"]["properties"]["format"] = {"const": FORMAT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"results.json of a session, format {FORMAT}",
        **made,
    }


def load_document(path: Path) -> Document:
    """A session's ``results.json`` of this or an older format, as one of this format.

    Raises BadInput if there is none, or if it is of a newer one.
    """
    try:
        data = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise BadInput(f"{path}: is no results file ({error})") from error
    written_as = data.get("format")
    if written_as not in range(1, FORMAT + 1):
        raise BadInput(f"{path}: results format {written_as!r}, this testbed reads 1 to {FORMAT}")
    runs = data.get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise BadInput(f"{path}: is no results file (runs is no list of objects)")
    if written_as == 1:
        data |= {"written": "", "runs": [{"operation": "", **run} for run in runs]}
    data["format"] = FORMAT
    try:
        return msgspec.convert(data, Document)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: is no results file ({error})") from error


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


def _print_schema() -> int:
    write_json(schema(), "-")
    return AS_EXPECTED


if __name__ == "__main__":
    sys.exit(output.ended("results", _print_schema))
