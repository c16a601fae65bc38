"""``python -m testbed explain``: tell the story of a recorded run."""

import argparse

from reports.story import story
from testbed.cli.recorded import found, judged_again
from testbed.fleet import MakesFleet
from testbed.model.exit_status import AS_EXPECTED


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "run", metavar="RUN", help="its folder, or a case id of the newest session that has it"
    )
    parser.add_argument(
        "--full", action="store_true", help="whole tracebacks and stacks, every consequence"
    )


def run(options: argparse.Namespace, _: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    print(story(judged_again(found(options.run)), full=options.full))
    return AS_EXPECTED
