"""``python -m testbed matrix``: scenarios by subjects, one verdict a cell."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from reports import matrix_page
from reports.matrix import UNFIT, Line, Matrix, Unfit, document, mark
from reports.matrix_table import errors, for_terminal, tally
from reports.progress import progress
from reports.results import Row, check_json, error_row, row, write_json
from reports.session import keep
from reports.table import shorten
from testbed import subjects
from testbed.console.options import (
    AS_EXPECTED,
    ENVIRONMENT,
    NOT_AS_EXPECTED,
    RAISE_WORLD,
    fleet_options,
    json_option,
    width,
)
from testbed.fleet import AnyFleet, LastingFleet, MakesFleet
from testbed.matrix import pins as pinned
from testbed.matrix import run as matrix
from testbed.matrix.pins import Pin, exactly
from testbed.model.errors import BadInput, EnvironmentFault, naming
from testbed.model.scenario import Scenario
from testbed.model.verdict import Outcome
from testbed.sessions import catalog
from testbed.sessions.result import RunResult
from testbed.sessions.store import DEFAULT_ROOT, RunStore, shown
from testbed.sessions.world import DEFAULT_WORLD, check_world

DOES = "run scenarios with subjects: a table with one verdict a cell, JSON and HTML"
_JSON_FILE, _HTML_FILE = "matrix.json", "matrix.html"


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Runs scenarios with subjects, one cell a pair: ✓ for the verdict ok, whatever the "
        "scenario's own expectation (it is written for the scenario's own subject), or another "
        "verdict and its step."
    )
    parser.epilog = (
        "exit status: 0 the table could be made (a cell is a finding, no failure), "
        "1 a cell is not as pinned by --expect, 2 bad input, 3 a cell is an error of the testbed"
    )
    parser.add_argument(
        "--subjects",
        metavar="S[,S]",
        help="names, or globs over those that are listed or cached (default: every release in the "
        "cache whose code can be lifted)",
    )
    scenarios_option(parser)
    parser.add_argument(
        "--expect",
        metavar="FILE",
        help="the cells pinned in this file must come out exactly so; without --subjects and "
        "--scenarios, those cells are the matrix",
    )
    fleet_options(parser, DEFAULT_WORLD)
    json_option(parser)
    parser.add_argument("--html", metavar="OUT", help="also write the page to this file")


def scenarios_option(parser: argparse.ArgumentParser) -> None:
    """``--scenarios``."""
    parser.add_argument(
        "--scenarios",
        metavar="NAME|FILE|GLOB[,...]",
        help="default: the built-in ones with a published report behind them (their key 'report')",
    )


def run(options: argparse.Namespace, make_fleet: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    if options.html is not None:
        check_json(options.html)
    pins = pinned.load(Path(options.expect)) if options.expect else []
    names, scenarios = _asked_for(options, pins)
    cases = matrix.cases(scenarios, names)
    if pins and not (options.subjects or options.scenarios):
        places = {pin.place for pin in pins}
        cases = [case for case in cases if (case.name, case.subject) in places]
    stream = sys.stderr if options.json == "-" else sys.stdout
    store = RunStore(DEFAULT_ROOT)
    cells: list[Row | Unfit] = []
    try:
        for each in filled(cases, options, make_fleet, store, stream):
            cells.append(each)
    finally:
        # Also after an error half way: what has run is told.
        made = gathered(cells, scenarios, options.world, store)
        if cells:
            _tell(made, stream)
            _keep(made, options, store)
    wrong = _not_as_pinned(pins, made)
    for line in wrong:
        print(f"✗ {line}", file=stream)
    if wrong:
        return NOT_AS_EXPECTED
    failed = any(cell["verdict"] == "error" for cell in made.cells)
    return ENVIRONMENT if failed else AS_EXPECTED


def scenarios_of(named: str | None) -> list[Scenario]:
    """What ``--scenarios`` names; by default those with a published report. Raises BadInput."""
    if named is None:
        return matrix.published()
    return catalog.load([name for name in named.split(",") if name])


def filled(
    cases: Sequence[Scenario],
    options: argparse.Namespace,
    make_fleet: MakesFleet,
    store: RunStore,
    stream: TextIO,
    title: str = "matrix",
) -> Iterator[Row | Unfit]:
    """Run the cases on one fleet, telling each on ``stream`` as it comes. title: of the progress.

    Raises BadInput for a topology that does not fit, before anything runs, and EnvironmentFault
    where there is no fleet any more or no room on the disk.
    """
    check_world(options.world, "--world")
    for case in cases:
        with naming(case.name):
            case.topology.check_fits(options.world, options.oversubscribe, RAISE_WORLD)

    def start() -> AnyFleet:
        return make_fleet(options.world, oversubscribe=options.oversubscribe, port=options.port)

    room = width(stream)
    with LastingFleet(start) as fleet, progress(title, len(cases), unit="cells") as bar:
        results = matrix.fill(cases, fleet, store)
        for case in cases:
            bar.now(case.case_id)
            result = next(results)
            made = _cell(result)
            bar.say(shorten(_line(case, made), room), stream)
            bar.advance()
            yield made
            if isinstance(result, RunResult) and result.lost:
                raise EnvironmentFault(result.lost)


def gathered(
    cells: Sequence[Row | Unfit], scenarios: Sequence[Scenario], world: int, store: RunStore
) -> Matrix:
    """The matrix of what has run: its columns and lines in the order in which they were asked."""
    rows = [cell for cell in cells if not isinstance(cell, Unfit)]
    unfit = [cell for cell in cells if isinstance(cell, Unfit)]
    ran = {row["scenario"] for row in rows} | {one.scenario for one in unfit}
    lines = [
        Line(one.name, str(one.topology), one.report, one.comment)
        for one in scenarios
        if one.name in ran
    ]
    names = [each.subject if isinstance(each, Unfit) else each["subject"] for each in cells]
    return Matrix(
        world=world,
        out=shown(store.folder) if cells else "",
        subjects=list(dict.fromkeys(names)),
        scenarios=lines,
        cells=rows,
        unfit=unfit,
    )


def _asked_for(
    options: argparse.Namespace, pins: Sequence[Pin]
) -> tuple[list[str], list[Scenario]]:
    """The subjects and scenarios of the matrix. Raises BadInput."""
    none = "no release is in the cache: name --subjects, such as sglang==0.5.19"
    if options.subjects:
        wanted = [name for name in options.subjects.split(",") if name]
        among = matrix.named_subjects(wanted)
        none = f"of --subjects {options.subjects} none can be lifted"
    elif pins:
        among = wanted = list(dict.fromkeys(pin.subject for pin in pins))
    else:
        among, wanted = subjects.cached(), []
    names, left_out = matrix.usable_subjects(among, wanted)
    for name, why in left_out.items():
        print(f"testbed: {name} is left out: {why}", file=sys.stderr)
    if not names:
        raise BadInput(none)
    if pins and not options.scenarios:
        return names, catalog.load(dict.fromkeys(pin.scenario for pin in pins))
    return names, scenarios_of(options.scenarios)


def _cell(result: matrix.Cell) -> Row | Unfit:
    if isinstance(result, matrix.Unfit):
        return Unfit(result.scenario.name, result.scenario.subject, result.reason)
    if isinstance(result, matrix.Unfilled):
        return error_row(result.scenario, result.reason)
    return row(result)


def _line(case: Scenario, cell: Row | Unfit) -> str:
    if isinstance(cell, Unfit):
        return f"{UNFIT:<8} {case.case_id}  {cell.reason}"
    said = "" if cell["verdict"] == "ok" else f"  {cell['summary']}"
    return f"{mark(cell):<8} {case.case_id}{said}"


def _tell(made: Matrix, stream: TextIO) -> None:
    print(f"\n{for_terminal(made, width(stream))}", file=stream)
    for line in errors(made.cells):
        print(line, file=stream)
    print(f"\n{tally(made.cells)}; kept in {made.out}, `{_HTML_FILE}` there to read", file=stream)


def _keep(made: Matrix, options: argparse.Namespace, store: RunStore) -> None:
    """The JSON and the page in the session's folder, and where the options say."""
    keep([_as_finding(cell) for cell in made.cells], made.world, store.folder)
    try:
        write_json(document(made), str(store.folder / _JSON_FILE))
        matrix_page.write(made, store.folder / _HTML_FILE)
    except BadInput as error:  # of the session's own folder the user knows nothing
        raise EnvironmentFault(f"the matrix cannot be kept: {error}") from error
    if options.json:
        write_json(document(made), options.json)
    if options.html:
        matrix_page.write(made, Path(options.html))


def _as_finding(cell: Row) -> Row:
    """A cell as a row of its session: no failure, since what the scenario expects is written for
    the scenario's own subject. Only a failure of the testbed's stays one.
    """
    if cell["verdict"] == Outcome.ERROR:
        return cell
    expected = cell["verdict"]
    return cell | {"expected": expected, "expectation": "", "as_expected": True, "why_not": ""}


def _not_as_pinned(pins: Sequence[Pin], made: Matrix) -> list[str]:
    """One line for each cell that is not as pinned; what was not run is not held against it, nor
    what the testbed failed in.
    """
    wrong = []
    run = {(cell["scenario"], cell["subject"]) for cell in made.cells}
    run |= {(unfit.scenario, unfit.subject) for unfit in made.unfit}
    if pins and run.isdisjoint(pin.place for pin in pins):
        wrong.append("none of these cells is pinned")
    for pin in pins:
        cell = made.cell(*pin.place)
        unfit = made.why_unfit(*pin.place)
        if unfit:
            wrong.append(f"{pin.scenario} with {pin.subject}: pinned, but {unfit}")
        elif cell is not None and cell["verdict"] != "error":
            got = exactly(Outcome(cell["verdict"]), cell["oracle"], cell["step"], cell["ranks"])
            wrong.append(pinned.difference(pin, got))
    return [line for line in wrong if line]
