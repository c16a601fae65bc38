"""Parts of torch that are built on its collectives, each as its documentation uses it."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.nn import functional as with_gradients
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from cases.peers.programs.world import digest, gloo

checkpoint: Any = torch.distributed.checkpoint


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def _batch(rank: int, step: int) -> torch.Tensor:
    torch.manual_seed(100 * step + rank)
    return torch.randn(6, 4)


def _train(model: Any, optimizer: Any, rank: int, steps: int = 3) -> torch.Tensor:
    for step in range(steps):
        optimizer.zero_grad()
        loss: torch.Tensor = model(_batch(rank, step)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.detach()


def ddp_hooks() -> list[float]:
    """DDP with hooks that reduce the gradients their own way. The models go before the groups do:
    whether a hook's callbacks are through by then is a race of torch's own, bare as well.
    """
    with gloo() as me:
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        told = _hooked(default_hooks.fp16_compress_hook, None, me.rank)
        told += _hooked(default_hooks.allreduce_hook, None, me.rank)
        return told + _hooked(powerSGD_hook.powerSGD_hook, state, me.rank)


def _hooked(hook: Any, state: Any, rank: int) -> list[float]:
    model = DistributedDataParallel(_model(), gradient_as_bucket_view=True)
    model.register_comm_hook(state, hook)
    return digest(_train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank))


def ddp_unused() -> list[float]:
    """DDP that looks for parameters without a gradient, other ones on each rank."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.one, self.two = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, given: torch.Tensor, first: bool) -> torch.Tensor:
            out: torch.Tensor = self.one(given) if first else self.two(given)
            return out

    with gloo() as me:
        model = DistributedDataParallel(Branches(), find_unused_parameters=True)
        for step in range(3):
            model(_batch(me.rank, step), (step + me.rank) % 2 == 0).square().mean().backward()
        return digest([one.grad for one in model.parameters()])


def zero() -> list[float]:
    """The optimizer's state, a share on each rank."""
    with gloo() as me:
        model = DistributedDataParallel(_model())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        loss = _train(model, optimizer, me.rank)
        optimizer.consolidate_state_dict(to=0)
        return digest([loss, *model.parameters()])


def fsdp_first() -> list[float]:
    """The first FullyShardedDataParallel."""
    with gloo() as me:
        model = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"))
        loss = _train(model, torch.optim.SGD(model.parameters(), lr=0.1), me.rank)
        return digest([loss, *model.parameters()])


def hybrid() -> list[float]:
    """FSDP2 over one dimension of a mesh, replicas over the other."""
    with gloo() as me:
        mesh = init_device_mesh("cpu", (2, me.size // 2), mesh_dim_names=("copies", "shards"))
        model = _model()
        fully_shard(model, mesh=mesh)
        loss = _train(model, torch.optim.SGD(model.parameters(), lr=0.1), me.rank)
        shares: list[Any] = list(model.parameters())
        return digest([loss, *(one.to_local() for one in shares)])


def pipeline_of_ddp() -> list[float]:
    """A pipeline whose stages are replicated."""
    with gloo() as me:
        mesh = init_device_mesh("cpu", (2, me.size // 2), mesh_dim_names=("pp", "dp"))
        stages, copies = mesh.get_group("pp"), mesh.get_group("dp")
        at = mesh.get_local_rank("pp")
        torch.manual_seed(at)
        part = DistributedDataParallel(nn.Linear(4, 4), process_group=copies)
        stage = PipelineStage(part, at, 2, torch.device("cpu"), group=stages)
        running = Schedule1F1B(stage, 4, loss_fn=lambda out, aim: (out - aim).square().mean())
        losses: list[torch.Tensor] = []
        whole, aim = torch.randn(2, 8, 4).unbind()
        if at == 0:
            running.step(whole)
        else:
            running.step(target=aim, losses=losses)
        return digest([*losses, *(one.grad for one in part.parameters())])


def gradients_through() -> list[float]:
    """Collectives that gradients go through."""
    with gloo() as me:
        mine = torch.full((3,), me.rank + 1.0, requires_grad=True)
        total = with_gradients.all_reduce(mine)  # type: ignore[no-untyped-call]
        every = with_gradients.all_gather(mine)  # type: ignore[no-untyped-call]
        (total.square().sum() + sum(every).sum() * me.rank).backward()
        return digest([total, mine.grad])


def checkpoints() -> list[float]:
    """Saved by all ranks into one checkpoint, and read again."""
    with gloo() as me:
        mesh = init_device_mesh("cpu", (me.size,))
        model = _model()
        fully_shard(model, mesh=mesh)
        folder = Path(os.environ["TESTBED_FOLDER"]) / "checkpoint"
        checkpoint.save(model.state_dict(), checkpoint_id=folder)
        for one in model.parameters():
            one.data.zero_()
        state = model.state_dict()
        checkpoint.load(state, checkpoint_id=folder)
        return digest([one.to_local() for one in state.values()])


def averaged() -> list[float]:
    """Models trained apart and averaged now and then."""
    with gloo() as me:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        averager = PeriodicModelAverager(period=2, warmup_steps=1)
        for step in range(4):
            optimizer.zero_grad()
            model(_batch(me.rank, step)).square().mean().backward()
            optimizer.step()
            averager.average_parameters(model.parameters())
        return digest(model.parameters())


def limits() -> list[float]:
    """Calls with a time limit of their own that runs out, and is caught."""
    with gloo() as me:
        apart = dist.new_group([0, 1])  # gloo closes a connection whose limit ran out
        mine, got = torch.full((2,), float(me.rank)), torch.empty(2)
        missed = 0
        if me.rank == 1:
            waiting = dist.irecv(got, 0, group=apart)
            try:
                assert waiting is not None
                waiting.wait(timedelta(milliseconds=50))
            except RuntimeError:
                missed += 1
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        dist.all_reduce(mine)
        return [*digest(mine), missed]


def no_goodbye() -> list[float]:
    """Ranks that end without a barrier, and leave their groups as they are."""
    dist.init_process_group("gloo")
    value = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(value)
    if dist.get_rank() == 0:
        dist.send(value, 1)
    elif dist.get_rank() == 1:
        dist.recv(value, 0)
    return digest(value)


def world_again() -> list[float]:
    """The default group destroyed and made again, each time by a file."""
    told = []
    for turn in range(2):
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['TESTBED_FOLDER']}/world-{turn}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        value = torch.full((3,), float(dist.get_rank() + turn))
        dist.all_reduce(value)
        told += digest(value)
        dist.barrier()
        dist.destroy_process_group()
    return told


def caught() -> list[float]:
    """A call that torch refuses, caught; then everything goes on."""
    with gloo() as me:
        refused = 0
        for call in (
            lambda: dist.send(torch.ones(1), me.rank),
            lambda: dist.all_reduce("no tensor"),
            lambda: dist.broadcast(torch.ones(1), 77),
        ):
            try:
                call()
            except (TypeError, ValueError, RuntimeError, KeyError):
                refused += 1
        value = torch.full((2,), float(me.rank))
        dist.all_reduce(value)
        return [*digest(value), refused]
