"""How the programs begin and end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class Me(NamedTuple):
    """This rank and the number of all."""

    rank: int
    size: int


@contextmanager
def gloo() -> Iterator[Me]:
    """The default group over gloo, as torchrun's environment describes it."""
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    yield Me(dist.get_rank(), dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()


def digest(tensors: Any) -> list[float]:
    """Numbers that tell tensors apart: of each its sum, weighted by place."""
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    told = []
    for tensor in tensors:
        flat = tensor.detach().flatten().double()
        told.append(float((flat * torch.arange(1, len(flat) + 1)).sum()))
    return told
