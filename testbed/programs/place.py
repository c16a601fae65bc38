"""What torchrun gives a rank: its numbers, and where all ranks find each other."""

import os
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore  # where the type stubs have them

from testbed.rank.folder_store import FolderStore
from testbed.rank.spec import RankSeat

_MEET_LIMIT = timedelta(seconds=30)
_ADDRESS = "127.0.0.1"
_PORT_KEY = "program's port"

_stores: list[Store] = []
"""Held for the rank's life, as torchrun's agent holds its store."""


def take_place(seat: RankSeat) -> None:
    """Set the environment variables that torchrun sets, so that ``init_process_group()`` works.

    Rank 0 serves the store that torchrun's agent would serve: it listens at a port that the kernel
    has chosen, so that nobody can come in between, and the variable that torchrun sets for it has
    the program's own ranks call there.
    """
    world = seat.scenario.topology.size
    meeting = FolderStore(seat.store, world, _MEET_LIMIT)
    if seat.rank == 0:
        served = TCPStore(_ADDRESS, 0, None, is_master=True, wait_for_workers=False, use_libuv=True)
        _stores.append(served)
        meeting.set(_PORT_KEY, str(served.port))
    port = meeting.get(_PORT_KEY).decode()
    numbers = {"RANK": seat.rank, "LOCAL_RANK": seat.rank, "GROUP_RANK": 0, "ROLE_RANK": seat.rank}
    sizes = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_WORLD_SIZE": 1}
    os.environ.update({name: str(value) for name, value in (numbers | sizes).items()})
    os.environ.update(
        MASTER_ADDR=_ADDRESS,
        MASTER_PORT=port,
        ROLE_NAME="default",
        ROLE_WORLD_SIZE=str(world),
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="testbed",
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    os.environ[FOLDER_ENV] = seat.store


FOLDER_ENV = "TESTBED_FOLDER"
"""Names an empty folder that the ranks of one program share."""
