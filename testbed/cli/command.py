"""The command line: which commands there are, and the module of each.

A command is a module of this package with ``options(parser)`` and ``run(options, make_fleet)``. Its
module is imported when the command is chosen, and only then: most of them import torch, which takes
seconds that ``--help`` and ``explain`` need not.

Exit status: see ``testbed.model.exit_status``. Errors are one line on standard error. ``--json -``
puts the JSON on standard output and the table on standard error.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from reports.results import check_json
from testbed.console import output
from testbed.console.options import Parser
from testbed.fleet import Fleet, MakesFleet
from testbed.model.exit_status import BAD_INPUT
from testbed.sessions import nodes


class Command(Protocol):
    """What the module of a command has."""

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""

    def run(self, options: argparse.Namespace, make_fleet: MakesFleet) -> int:
        """Run the command and return its exit status."""


class Place(NamedTuple):
    """Where a command is, and what it does in one line."""

    module: str
    does: str


COMMANDS: dict[str, Place] = {
    "run": Place("testbed.cli.run", "run scenario files or built-in scenarios"),
    "list": Place("testbed.cli.list", "list what there is, one line each"),
    "explain": Place("testbed.cli.explain", "tell the story of a recorded run"),
    "replay": Place("testbed.cli.replay", "run the scenarios of recorded runs again"),
    "diff": Place("testbed.cli.diff", "tell the first place where two recorded runs differ"),
    "recheck": Place("testbed.cli.recheck", "judge recorded runs again without running them"),
    "matrix": Place(
        "testbed.cli.matrix",
        "run scenarios with subjects: a table with one verdict a cell, JSON and HTML",
    ),
    "compare": Place(
        "testbed.cli.compare",
        "compare two subjects under the same scenarios: verdicts, sync operations a step",
    ),
    "subjects": Place("testbed.cli.subjects", "fetch releases of SGLang into the cache"),
    "bench": Place("testbed.cli.bench", "measure what an agreement costs"),
    "doctor": Place("testbed.cli.doctor", "check the environment, one line each"),
}


def main(argv: Sequence[str] | None = None, make_fleet: MakesFleet = Fleet) -> int:
    """Run one command and return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return output.ended("testbed", lambda: _command(arguments, make_fleet))


def load(arguments: Sequence[str]) -> None:
    """Import the module of the command that the arguments name, ahead of ``main``."""
    chosen = _chosen(arguments)
    if chosen is not None:
        _module(chosen)


def _command(arguments: Sequence[str], make_fleet: MakesFleet) -> int:
    chosen = _chosen(arguments)
    command = None if chosen is None else _module(chosen)
    parser = _parser(chosen, command)
    if not arguments:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    options = parser.parse_args(arguments)
    assert command is not None  # else the parser has ended the program
    if getattr(options, "json", None) is not None:
        check_json(options.json)
    if hasattr(options, "listen"):
        nodes.check(vars(options))
    return command.run(options, make_fleet)


def _chosen(arguments: Sequence[str]) -> str | None:
    """The command that the arguments name; None where they name none that there is."""
    first = next((each for each in arguments if not each.startswith("-")), None)
    return first if first in COMMANDS else None


def _module(name: str) -> Command:
    return cast(Command, import_module(COMMANDS[name].module))


def _parser(chosen: str | None, command: Command | None) -> argparse.ArgumentParser:
    """Of all commands by name, and of the options of the chosen one."""
    parser = Parser(
        prog="testbed",
        description="Runs protocols that keep a KV-cache hierarchy in step on real ranks.",
        epilog="exit status: 0 as expected, 1 not as expected, 2 bad input, 3 environment",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, place in COMMANDS.items():
        added = commands.add_parser(name, help=place.does, description=place.does)
        if command is not None and name == chosen:
            command.options(added)
    return parser
