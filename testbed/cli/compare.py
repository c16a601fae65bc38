"""``python -m testbed compare A B``: two subjects under the same scenarios, before and after."""

import argparse
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec

from reports import comparison
from reports.comparison import Pair
from reports.matrix import Matrix, Unfit, load
from reports.matrix_table import for_terminal, tally
from reports.results import Row, write_json
from reports.session import keep
from testbed.cli.cells import filled, gathered, scenarios_of, scenarios_option
from testbed.console.options import (
    fleet_options,
    json_option,
    width,
)
from testbed.fleet import MakesFleet
from testbed.matrix import run as matrix
from testbed.model.errors import BadInput, brief
from testbed.model.exit_status import AS_EXPECTED, ENVIRONMENT, NOT_AS_EXPECTED
from testbed.model.scenario import Scenario
from testbed.sessions import catalog
from testbed.sessions.store import DEFAULT_ROOT, RunStore
from testbed.sessions.world import DEFAULT_WORLD


class _Side(NamedTuple):
    """One of the two. file: of a matrix that was run before; None for a subject to be run."""

    name: str
    file: Path | None


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = (
        "Worse is a verdict that went down the order ok, degraded, broken (violation, deadlock, "
        "crash and hang, none worse than another; from one to another is a change). More sync "
        "operations a step are told, and worse only with --strict-ops. "
        "exit status: 0 B is not worse, 1 B is worse, 2 bad input, 3 a pair could not be compared "
        "because the testbed failed"
    )
    for side in ("A", "B"):
        parser.add_argument(
            side.lower(),
            metavar=side,
            help="a subject, or a file that `matrix --json` wrote: then nothing is run for it",
        )
    scenarios_option(parser)
    parser.add_argument(
        "--strict-ops",
        action="store_true",
        help="more sync operations a step, on leader stage or followers, are worse too",
    )
    fleet_options(parser, DEFAULT_WORLD)
    json_option(parser)


def run(options: argparse.Namespace, make_fleet: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    sides = [_side(options.a), _side(options.b)]
    stream = sys.stderr if options.json == "-" else sys.stdout
    files = {side.name: load(side.file) for side in sides if side.file is not None}
    names = list(dict.fromkeys(side.name for side in sides if side.file is None))
    if names:
        scenarios = _to_run(options.scenarios, files)
        ran = _ran(names, scenarios, options, make_fleet)
        wanted = {scenario.name for scenario in scenarios}
    else:
        ran, wanted = {}, _among(options.scenarios, files)
    a, b = (_narrowed({**files, **ran}[side.name], wanted) for side in sides)
    pairs = comparison.compare(a, b)
    worse = comparison.worse(pairs, strict_ops=options.strict_ops)
    table = comparison.for_terminal(pairs)
    print(f"\nA {options.a}\nB {options.b}\n" + (f"\n{table}\n" if table else ""), file=stream)
    print(comparison.tally(pairs), file=stream)
    alone = comparison.only_one_side(a, b)
    if alone:
        print(f"only on one side: {', '.join(alone)}", file=stream)
    for pair in worse:
        print(f"\n{_report(pair)}", file=stream)
    if options.json:
        write_json(comparison.document(pairs, options.a, options.b), options.json)
    if worse:
        return NOT_AS_EXPECTED
    return ENVIRONMENT if any(pair.change == "unknown" for pair in pairs) else AS_EXPECTED


def _side(name: str) -> _Side:
    path = Path(name)
    return _Side(name, path if path.suffix == ".json" or path.is_file() else None)


def _to_run(named: str | None, files: Mapping[str, Matrix]) -> list[Scenario]:
    """What is to be run: by default what a file on the other side has. Raises BadInput."""
    if named is not None or not files:
        return scenarios_of(named)
    ((path, file),) = files.items()
    known = {builtin.stem for builtin in catalog.builtin_files()}
    lacking = [line.name for line in file.scenarios if line.name not in known]
    if lacking:
        raise BadInput(
            f"{path} has {brief(', '.join(lacking))}, not built in: to run the other side, "
            "name its scenario files with --scenarios"
        )
    return scenarios_of(",".join(line.name for line in file.scenarios))


def _among(named: str | None, files: Mapping[str, Matrix]) -> set[str]:
    """The scenarios of two files that are wanted: all, or those of the names and globs given; a
    scenario's own file need not be there. Raises BadInput for what names none of them.
    """
    there = {cell["scenario"] for file in files.values() for cell in file.cells}
    if named is None:
        return there
    wanted: set[str] = set()
    for each in filter(None, named.split(",")):
        fitting = {name for name in there if fnmatchcase(name, each)} or _in_file(each) & there
        if not fitting:
            both = " and ".join(files)
            raise BadInput(f"--scenarios {brief(each)} names no scenario of {both}")
        wanted |= fitting
    return wanted


def _in_file(named: str) -> set[str]:
    """The scenarios that it stands for as a file, none if there is no such file."""
    try:
        return {scenario.name for scenario in scenarios_of(named)}
    except BadInput:
        return set()


def _ran(
    names: list[str],
    scenarios: list[Scenario],
    options: argparse.Namespace,
    make_fleet: MakesFleet,
) -> dict[str, Matrix]:
    """The matrix of each subject that is to be run, all of them on one fleet."""
    matrix.usable_subjects(names, names)
    stream = sys.stderr if options.json == "-" else sys.stdout
    store = RunStore(DEFAULT_ROOT)
    cells: list[Row | Unfit] = []
    whole = False
    try:
        cases = matrix.cases(scenarios, names)
        for each in filled(cases, options, make_fleet, store, stream, "compare"):
            cells.append(each)
        whole = True
    finally:
        both = gathered(cells, scenarios, options.world, store)
        if both.cells and not whole:  # pairs there are hardly any yet: what has run is told
            print(f"\n{for_terminal(both, width(stream))}", file=stream)
            print(f"\n{tally(both.cells)}; kept in {both.out}", file=stream)
        if both.cells:
            keep(both.cells, options.world, store.folder)
    return {name: _only(both, name) for name in names}


def _only(both: Matrix, subject: str) -> Matrix:
    cells = [cell for cell in both.cells if cell["subject"] == subject]
    return msgspec.structs.replace(both, subjects=[subject], cells=cells)


def _narrowed(side: Matrix, wanted: set[str]) -> Matrix:
    """Only the scenarios asked for, of a side that a file may have more of."""
    cells = [cell for cell in side.cells if cell["scenario"] in wanted]
    return msgspec.structs.replace(side, cells=cells)


def _report(pair: Pair) -> str:
    why = pair.change if pair.change == "worse" else f"sync operations a step: {pair.ops}"
    of = f" with {pair.subject}" if pair.subject else ""
    return (
        f"{why}: {pair.scenario}{of} at {pair.topology}, {pair.a} before, {pair.b} now: "
        f"{pair.summary}\nreplay it: {pair.replay}"
    )
