"""``python -m testbed replay``: run the scenarios of recorded runs again."""

import argparse
import contextlib

from testbed.cli.cases import run_cases
from testbed.cli.recorded import all_found
from testbed.cli.telling import ranks_option
from testbed.console.options import fleet_options, json_option
from testbed.fleet import MakesFleet
from testbed.model import record
from testbed.sessions import nodes
from testbed.sessions.store import in_use, shown
from testbed.sessions.world import DEFAULT_WORLD


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run, or a session's folder")
    fleet_options(parser, None)
    nodes.add_options(parser.add_argument)
    ranks_option(parser)
    json_option(parser)


def run(options: argparse.Namespace, make_fleet: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    paths = all_found(options.runs)
    cases = [(shown(path), record.load(path).scenario) for path in paths]
    largest = max(case.topology.size for _, case in cases)
    world = min(largest, DEFAULT_WORLD) if options.world is None else options.world
    # A replay needs no flags of its own: what ran on one fleet runs on any.
    oversubscribe = options.oversubscribe or (options.world is None and largest > world)
    with contextlib.ExitStack() as held:
        for path in paths:  # what is being looked at is not pruned away by its own replay
            held.enter_context(in_use(path))
        return run_cases(cases, options, world, oversubscribe, make_fleet)
