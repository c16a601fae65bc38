"""``torch.multiprocessing.spawn``: fresh processes for every case, by a function call."""

import tempfile
from collections.abc import Callable

import torch.distributed as dist
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
)

from testbed.measure.harness.case import Kind, play


def runner(world: int) -> Callable[[Kind], str]:
    """Runs a case; what it said of a failure, "" for none."""

    def run(kind: Kind) -> str:
        with tempfile.TemporaryDirectory(prefix="testbed-harness-") as folder:
            try:
                spawn(  # type: ignore[no-untyped-call]
                    _rank, args=(world, f"{folder}/store", kind.value), nprocs=world
                )
            except (
                ProcessExitedException,
                ProcessRaisedException,
            ) as error:
                return str(error)
        return ""

    return run


def _rank(rank: int, world: int, store: str, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    play(Kind(kind))
    dist.destroy_process_group()
