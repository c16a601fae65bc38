"""``python -m testbed recheck``: judge recorded runs again without running them."""

import argparse

from testbed.cli.recorded import all_found, judged_again
from testbed.cli.telling import ranks_option, status, tell
from testbed.console.options import json_option
from testbed.fleet import MakesFleet


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run, or a session's folder")
    ranks_option(parser)
    json_option(parser)


def run(options: argparse.Namespace, _: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    paths = all_found(options.runs)
    return status(tell([judged_again(path) for path in paths], options, 0, ""))
