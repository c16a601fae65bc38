"""Training of small models: DDP, FSDP2, tensor parallelism."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from cases.peers.programs.world import digest, gloo


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def _batch(rank: int, step: int) -> torch.Tensor:
    torch.manual_seed(100 * step + rank)
    return torch.randn(6, 4)


def ddp(steps: int = 3, idle: int = -1, wide: int = -1) -> list[float]:
    """Data-parallel training. idle: a rank that leaves out a backward pass. wide: one whose model
    has another size, which DDP checks.
    """
    with gloo() as me:
        model = _model()
        if me.rank == wide:
            model[4] = nn.Linear(8, 3)
        trained = DistributedDataParallel(model, bucket_cap_mb=0.0002)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for step in range(steps):
            optimizer.zero_grad()
            loss = trained(_batch(me.rank, step)).square().mean()
            if not (me.rank == idle and step == 1):
                loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return digest([total, *trained.parameters()])


def ddp_without_sync(steps: int = 4) -> list[float]:
    """DDP that accumulates gradients, and joins ranks with uneven inputs."""
    with gloo() as me:
        model = DistributedDataParallel(_model())
        for step in range(steps):
            if step % 2 == 0:
                with model.no_sync():
                    model(_batch(me.rank, step)).square().mean().backward()
            else:
                model(_batch(me.rank, step)).square().mean().backward()
        with model.join():
            for step in range(1 + me.rank):
                model(_batch(me.rank, step)).square().mean().backward()
        return digest([one.grad for one in model.parameters()])


def fsdp(steps: int = 3) -> list[float]:
    """FSDP2: parameters gathered before use, gradients scattered after."""
    with gloo() as me:
        mesh = init_device_mesh("cpu", (me.size,))
        model = _model()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(_batch(me.rank, step)).square().mean()
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return digest([total, *(_local(one) for one in model.parameters())])


def tensor_parallel(steps: int = 2) -> list[float]:
    """A two-layer block, split by columns and by rows."""
    with gloo() as me:
        mesh = init_device_mesh("cpu", (me.size,))
        torch.manual_seed(3)
        block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for step in range(steps):
            block(_batch(0, step)).square().mean().backward()
        grads = [one.grad for one in block.parameters()]
        return digest([_local(one) for one in grads])


def dtensor(left_out: int = -1) -> list[float]:
    """DTensors that change how they are placed. left_out: a rank that leaves out one change."""
    with gloo() as me:
        mesh = init_device_mesh("cpu", (me.size,))
        whole = torch.arange(4.0 * me.size * 2).view(4 * me.size, 2)
        split = distribute_tensor(whole, mesh, [Shard(0)])
        product: Any = split @ distribute_tensor(torch.ones(2, 4), mesh, [Replicate()])
        if me.rank != left_out:
            product = product.redistribute(mesh, [Shard(1)])
        every = product.redistribute(mesh, [Replicate()]).to_local()
        norm = split.norm().full_tensor()
        return digest([every, norm])
