"""Libraries that others wrote, where they are installed."""

from typing import Any

import torch
from torch import nn

from cases.peers.programs.world import digest, gloo


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _train(model: Any, optimizer: Any, rank: int) -> torch.Tensor:
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.randn(6, 4)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.detach()


def sharded_ddp() -> list[float]:
    """FairScale's sharded optimizer, and its data parallelism that goes with it."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    with gloo() as me:
        model = _model()
        optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=0.1)
        loss = _train(ShardedDataParallel(model, optimizer), optimizer, me.rank)
        return digest([loss, *model.parameters()])
