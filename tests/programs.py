"""Small programs for ``test_programs``: as a user's own, they make their own groups."""

import os

import torch
import torch.distributed as dist


def environment() -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return {name: os.environ[name] for name in names}


def summed(rounds: int = 2) -> float:
    dist.init_process_group("gloo")
    total = torch.full((2,), dist.get_rank() + 1.0)
    for _ in range(rounds):
        dist.all_reduce(total)
    return float(total[0])


def unreceived() -> bool:
    """What a finished Work in the place of a skipped isend says."""
    dist.init_process_group("gloo")
    done = True
    if dist.get_rank() == 0:
        work = dist.isend(torch.ones(2), 1)
        assert work is not None
        done = bool(work.wait()) and work.is_completed()
    dist.barrier()
    return done


def two_messages() -> list[float]:
    dist.init_process_group("gloo")
    got = [torch.empty(1), torch.empty(2)]
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1, tag=1)
        dist.send(torch.ones(2), 1, tag=2)
    else:
        dist.recv(got[1], 0, tag=2)
        dist.recv(got[0], 0, tag=1)
    dist.barrier()
    return [float(one.sum()) for one in got] if dist.get_rank() == 1 else []


def fails() -> None:
    dist.init_process_group("gloo")
    raise LookupError("of its own")
