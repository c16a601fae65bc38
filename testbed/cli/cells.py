"""Running the cells of a matrix, as ``matrix`` and ``compare`` do."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TextIO

from reports.matrix import UNFIT, Line, Matrix, Unfit, mark
from reports.progress import progress
from reports.results import Row, error_row, row
from reports.table import shorten
from testbed.console.options import RAISE_WORLD, width
from testbed.fleet import AnyFleet, LastingFleet, MakesFleet
from testbed.matrix import run as matrix
from testbed.model.errors import EnvironmentFault, naming
from testbed.model.scenario import Scenario
from testbed.sessions import catalog
from testbed.sessions.result import RunResult
from testbed.sessions.store import RunStore, shown
from testbed.sessions.world import check_world


def scenarios_option(parser: argparse.ArgumentParser) -> None:
    """``--scenarios``."""
    parser.add_argument(
        "--scenarios",
        metavar="NAME|FILE|GLOB[,...]",
        help="default: the built-in ones with a published report behind them (their key 'report')",
    )


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
