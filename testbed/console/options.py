"""What the commands of the command line share: options, how wide a table may be."""

import argparse
import shutil
from typing import NoReturn, TextIO

from testbed.model.exit_status import BAD_INPUT
from testbed.sessions.world import DEFAULT_WORLD

RAISE_WORLD = "raise --world or pass --oversubscribe"

_WIDTH_OF_A_FILE = 160


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of printing the usage before it."""

    def error(self, message: str) -> NoReturn:
        """End the program with that line."""
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def fleet_options(parser: argparse.ArgumentParser, world: int | None) -> None:
    """``--world``, ``--oversubscribe`` and ``--port``; world: the default, None for what the cases
    need.
    """
    parser.add_argument(
        "--world",
        type=int,
        default=world,
        metavar="N",
        help="hosts of the fleet (default: %(default)s)"
        if world
        else f"hosts of the fleet (default: as many as the case needs, up to {DEFAULT_WORLD})",
    )
    parser.add_argument(
        "--oversubscribe", action="store_true", help="let a host run several ranks of one case"
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="P", help="where the hosts call (default: any free)"
    )


def json_option(parser: argparse.ArgumentParser) -> None:
    """``--json OUT``."""
    parser.add_argument("--json", metavar="OUT", help="also write JSON to this file, - for stdout")


def width(stream: TextIO) -> int:
    """Columns of the terminal, or of what is written into a file."""
    wide = (_WIDTH_OF_A_FILE, 24)
    return shutil.get_terminal_size(wide).columns if stream.isatty() else _WIDTH_OF_A_FILE
