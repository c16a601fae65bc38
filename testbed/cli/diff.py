"""``python -m testbed diff``: tell the first place where two recorded runs differ."""

import argparse

from reports.differ import compared
from testbed.cli.recorded import found, judged_again
from testbed.fleet import MakesFleet
from testbed.model.exit_status import AS_EXPECTED, NOT_AS_EXPECTED


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    for which in ("one", "other"):
        parser.add_argument(
            which, metavar="RUN", help="its folder, or a case id of the newest session that has it"
        )


def run(options: argparse.Namespace, _: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    one, other = (judged_again(found(named)) for named in (options.one, options.other))
    difference = compared(one, other)
    print(difference.told)
    return NOT_AS_EXPECTED if difference.differ else AS_EXPECTED
