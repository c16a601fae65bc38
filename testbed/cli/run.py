"""``python -m testbed run``: run scenario files or built-in scenarios."""

import argparse
from pathlib import Path

from testbed import subjects
from testbed.cli.cases import Named, run_cases
from testbed.cli.telling import ranks_option
from testbed.console.options import fleet_options, json_option
from testbed.fleet import MakesFleet
from testbed.model import scenario as scenarios
from testbed.model.errors import naming
from testbed.sessions import catalog, nodes
from testbed.sessions.catalog import Axes
from testbed.sessions.store import shown
from testbed.sessions.world import DEFAULT_WORLD


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("scenarios", nargs="+", metavar="FILE|NAME", help="or a glob of either")
    parser.add_argument("--subject", help="run with this subject instead of the scenario's own")
    for axis in ("pp", "tp", "cp"):
        own = f"{axis} size instead of its own"
        parser.add_argument(f"--{axis}", type=int, metavar="N", help=own)
    parser.add_argument("--backend", choices=("gloo", "nccl"))
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--agree-on", choices=("gloo", "nccl"), help="what the agreement goes over")
    fleet_options(parser, DEFAULT_WORLD)
    nodes.add_options(parser.add_argument)
    ranks_option(parser)
    json_option(parser)


def run(options: argparse.Namespace, make_fleet: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    axes = Axes(options.pp, options.tp, options.cp)
    own = {key: getattr(options, key) for key in ("subject", "backend", "device", "agree_on")}
    changes = {key: value for key, value in own.items() if value is not None}
    if options.subject is not None:
        subjects.prepare(options.subject)
    cases: list[Named] = []
    for path in (path for named in options.scenarios for path in catalog.find(named)):
        where = shown(path)
        scenario = scenarios.load(Path(where))
        with naming(where):
            spread = catalog.spread(scenario, axes=axes)
            cases += [(where, case.but(**changes)) for case in spread]
    return run_cases(cases, options, options.world, options.oversubscribe, make_fleet)
