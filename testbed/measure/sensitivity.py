"""The sensitivity table: which planted bug is caught, by which oracle, where, and what gloo said.

``python -m testbed.measure.sensitivity [SESSION]`` reads the records of a session (default: the
latest), judges those of planted bugs again, prints the table and keeps it as ``sensitivity.md``
in the session's folder. Exit status: 0 every bug was caught by the oracle that names its cause, 1
one was not, 2 bad input.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from reports.table import shorten
from testbed.console import output
from testbed.model import record
from testbed.model.errors import BadInput
from testbed.model.exit_status import AS_EXPECTED, BAD_INPUT, NOT_AS_EXPECTED
from testbed.model.record import RunRecord
from testbed.oracles import View
from testbed.oracles.endings import is_echo
from testbed.sessions.finding import find_runs
from testbed.sessions.result import RunResult, judged
from testbed.sessions.store import DEFAULT_ROOT, LATEST
from testbed.subjects import bugs

TABLE_FILE = "sensitivity.md"

HEADERS = ("planted bug", "report", "caught", "by", "step", "first divergence", "gloo said")
_DIVERGENCE_WIDTH, _GLOO_WIDTH = 64, 40


@dataclass(frozen=True)
class Line:
    """One run of a planted bug. bug: its name without ``bug:``. case: what tells its scenarios
    apart, "" for the only one. caught: as its scenario expects. by: oracle, or verdict where none
    names the cause. divergence: the first one in one line. gloo: see ``gloo_said``."""

    bug: str
    case: str
    report: str
    caught: bool
    by: str
    step: int | None
    divergence: str
    gloo: str


def line(result: RunResult) -> Line:
    """The line of one judged run of a planted bug. Raises BadInput for another subject."""
    scenario, verdict = result.scenario, result.verdict
    planted = bugs.find(scenario.subject)
    bug = scenario.subject.removeprefix(bugs.PREFIX)
    return Line(
        bug=bug,
        case=scenario.name.removeprefix(f"bug-{bug}").removeprefix("-"),
        report=planted.report,
        caught=result.as_expected,
        by=verdict.oracle or str(verdict.outcome),
        step=verdict.step,
        divergence=verdict.first_divergence.one_line() if verdict.first_divergence else "",
        gloo=gloo_said(result.record),
    )


def gloo_said(run: RunRecord) -> str:
    """What gloo itself complained of, "" if of nothing.

    An exception out of a torch.distributed call counts, and a process that gloo ended; an exception
    about a lost connection does not: it says that a peer has gone, whatever it went for.
    """
    for rank in View(run).ranks.values():
        if rank.record.exit == "signal" and "gloo::" in rank.record.output:
            return f"rank {rank.rank} ended: {_reason(rank.record.output)}"
        raised = rank.raised
        if raised is not None and raised.inside and not is_echo(rank):
            return f"rank {rank.rank} raised in {raised.inside}: {_reason(raised.message)}"
    return ""


def _reason(text: str) -> str:
    # Behind the last bracket of gloo's "[enforce fail at file:line] ...".
    lines = [each.rpartition("]")[2].strip() for each in text.splitlines() if "]" in each]
    return (lines or text.splitlines() or [""])[0]


def table(lines: Sequence[Line], style: str = "simple") -> str:
    """The table, one line a run; in Markdown (``pipe``) nothing is shortened."""
    whole = style == "pipe"
    cells = [
        [
            f"{each.bug} ({each.case})" if each.case else each.bug,
            each.report,
            "yes" if each.caught else "✗ NO",
            each.by,
            "" if each.step is None else str(each.step),
            each.divergence if whole else shorten(each.divergence, _DIVERGENCE_WIDTH),
            (each.gloo if whole else shorten(each.gloo, _GLOO_WIDTH)) or "nothing",
        ]
        for each in lines
    ]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in cells] if whole else cells
    text: str = tabulate(escaped, HEADERS, style, disable_numparse=True)
    return text


def tally(lines: Sequence[Line]) -> str:
    """``31 runs of 29 planted bugs: 31 caught; gloo said nothing in 29 runs (28 bugs)``."""
    names = {each.bug for each in lines}
    caught = sum(each.caught for each in lines)
    silent = [each for each in lines if not each.gloo]
    missing = sorted(bugs.REGISTRY.keys() - names)
    text = (
        f"{len(lines)} runs of {len(names)} planted bugs: {caught} caught; "
        f"gloo said nothing in {len(silent)} runs ({len({each.bug for each in silent})} bugs)"
    )
    return text + (f"; not run: {', '.join(missing)}" if missing else "")


def read(session: str) -> list[Line]:
    """The lines of a session's folder, or of one run. Raises BadInput if no bug was run there."""
    results = [judged(record.load(path), path) for path in find_runs(session)]
    of_bugs = [one for one in results if one.scenario.subject.startswith(bugs.PREFIX)]
    if not of_bugs:
        raise BadInput(f"{session}: no planted bug was run there (`make test-bugs` runs them)")
    order = {name: place for place, name in enumerate(bugs.REGISTRY)}
    return sorted(map(line, of_bugs), key=lambda each: (order[each.bug], each.case))


def main(argv: Sequence[str]) -> int:
    """Print the table of a session; returns the exit status."""
    return output.ended("sensitivity", lambda: _print(argv))


def _print(argv: Sequence[str]) -> int:
    if len(argv) > 1 or argv[:1] in (["-h"], ["--help"]):
        print("usage: python -m testbed.measure.sensitivity [SESSION]", file=sys.stderr)
        return BAD_INPUT
    session = argv[0] if argv else str(DEFAULT_ROOT / LATEST)
    lines = read(session)
    print(f"{table(lines)}\n\n{tally(lines)}")
    if (Path(session) / "runs").is_dir():
        kept = Path(session) / TABLE_FILE
        kept.write_text(f"{table(lines, 'pipe')}\n\n{tally(lines)}\n", encoding="utf-8")
        print(f"kept in {kept}")
    return AS_EXPECTED if all(each.caught for each in lines) else NOT_AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
