"""What a command prints of judged runs, and their exit status. Imports no torch."""

import argparse
import sys
from collections.abc import Sequence

from reports import outputs
from reports.colour import takes_colour
from reports.failure import report
from reports.results import Row, document, row, write_json
from reports.table import for_terminal, tally
from testbed.console.options import width
from testbed.model.exit_status import AS_EXPECTED, ENVIRONMENT, NOT_AS_EXPECTED
from testbed.sessions.result import RunResult


def ranks_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", choices=outputs.CHOICES, default="first", help=outputs.HELP)


def tell(
    results: Sequence[RunResult], options: argparse.Namespace, world: int, out: str
) -> list[Row]:
    stream = sys.stderr if options.json == "-" else sys.stdout
    rows = [row(result) for result in results]
    print(for_terminal(rows, width(stream), colour=takes_colour(stream)), file=stream)
    print(f"\n{tally(rows)}" + (f"; kept in {out}" if out else ""), file=stream)
    # After the table: the last line of all is the command that replays what failed.
    for each, result in zip(rows, results, strict=True):
        if not each["as_expected"]:
            print(f"\n{report(each, outputs.outputs(result, options.ranks))}", file=stream)
    if options.json:
        write_json(document(rows, world, out), options.json)
    return rows


def status(rows: Sequence[Row]) -> int:
    """3 where only runs that the testbed itself failed were not as expected, else 1."""
    failed = [row["verdict"] for row in rows if not row["as_expected"]]
    if not failed:
        return AS_EXPECTED
    return ENVIRONMENT if set(failed) == {"error"} else NOT_AS_EXPECTED
