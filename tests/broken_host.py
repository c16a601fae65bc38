"""A host whose ranks raise before anything guards them: ``tests.broken_host`` for a fleet."""

import os
from typing import NoReturn

from testbed.death import die_with_parent
from testbed.fleet.fork_server import serve
from testbed.rank.spec import RankSeat

SAID = "raised where nothing guards it"


def run_rank(seat: RankSeat) -> NoReturn:
    """What no rank does."""
    raise RuntimeError(SAID)


if __name__ == "__main__":
    die_with_parent(os.getppid())
    serve(lambda subject: None, run_rank)
