"""``python -m testbed matrix``: scenarios by subjects, one verdict a cell."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from reports import matrix_page
from reports.matrix import Matrix, Unfit, document
from reports.matrix_table import errors, for_terminal, tally
from reports.results import Row, check_json, write_json
from reports.session import keep
from testbed import subjects
from testbed.cli.cells import filled, gathered, scenarios_of, scenarios_option
from testbed.console.options import (
    fleet_options,
    json_option,
    width,
)
from testbed.fleet import MakesFleet
from testbed.matrix import pins as pinned
from testbed.matrix import run as matrix
from testbed.matrix.pins import Pin, exactly
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.exit_status import AS_EXPECTED, ENVIRONMENT, NOT_AS_EXPECTED
from testbed.model.scenario import Scenario
from testbed.model.verdict import Outcome
from testbed.sessions import catalog
from testbed.sessions.store import DEFAULT_ROOT, RunStore
from testbed.sessions.world import DEFAULT_WORLD

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
