"""``python -m testbed subjects fetch NAME...``: have releases at hand, to go offline with."""

import argparse
from collections.abc import Sequence

from reports.progress import progress
from testbed import subjects
from testbed.fleet import MakesFleet
from testbed.model.errors import BadInput
from testbed.model.exit_status import AS_EXPECTED


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("what", choices=("fetch",))
    parser.add_argument("names", nargs="+", metavar="sglang==X")


def run(options: argparse.Namespace, _: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    fetch(options.names)
    return AS_EXPECTED


def fetch(names: Sequence[str]) -> None:
    """Fetch each release that is not in the cache as it was fetched; a line for each on standard
    output, when it is there. Raises BadInput for a name that is no release's, before anything is
    fetched, and as ``subjects.check`` does.
    """
    for name in names:
        if not name.startswith(subjects.RELEASE):
            raise BadInput(f"subject {name!r} is no release: write {subjects.RELEASE}0.5.19")
        subjects.check_form(name)
    with progress("fetch", len(names), unit="releases") as bar:
        for name in names:
            bar.now(name)
            bar.say(subjects.fetched(name))
            bar.advance()
