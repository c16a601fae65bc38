"""Collectives in all the ways that programs call them."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives
from torch.distributed import all_reduce as imported_before
from torch.distributed.device_mesh import init_device_mesh

from cases.peers.programs.world import digest, gloo

functional: Any = _functional_collectives
new_subgroups: Any = dist.new_subgroups


def every_kind() -> list[float]:
    """One of each, synchronous."""
    with gloo() as me:
        mine = torch.arange(4.0) + me.rank
        told = []
        reduced = mine.clone()
        dist.all_reduce(reduced, op=dist.ReduceOp.MAX)
        told += digest(reduced)
        shared = mine.clone()
        dist.broadcast(shared, src=me.size - 1)
        told += digest(shared)
        to_one = mine.clone()
        dist.reduce(to_one, dst=0)
        told += digest(to_one) if me.rank == 0 else []
        every = [torch.empty(4) for _ in range(me.size)]
        dist.all_gather(every, mine)
        told += digest(every)
        flat = torch.empty(4 * me.size)
        dist.all_gather_into_tensor(flat, mine)
        told += digest(flat)
        part = torch.empty(2)
        dist.reduce_scatter_tensor(part, torch.arange(2.0 * me.size) * (me.rank + 1))
        told += digest(part)
        parts = [torch.full((3,), float(me.rank * 10 + n)) for n in range(me.size)]
        own = torch.empty(3)
        dist.reduce_scatter(own, parts)
        told += digest(own)
        dist.scatter(own, parts if me.rank == 0 else None, src=0)
        told += digest(own)
        gathered = [torch.empty(4) for _ in range(me.size)] if me.rank == 0 else None
        dist.gather(mine, gathered, dst=0)
        told += digest(gathered or [])
        swapped = torch.empty(me.size)
        dist.all_to_all_single(swapped, torch.arange(float(me.size)) + me.rank * 100)
        told += digest(swapped)
        imported_before(swapped)
        told += digest(swapped)
        return told


def uneven_exchange() -> list[float]:
    """all_to_all_single with another length for each pair, and all_to_all."""
    with gloo() as me:
        goes = [me.rank + to + 1 for to in range(me.size)]
        comes = [me.rank + source + 1 for source in range(me.size)]
        out = torch.empty(sum(comes))
        dist.all_to_all_single(out, torch.arange(float(sum(goes))), comes, goes)
        lists = [torch.empty(2) for _ in comes]
        dist.all_to_all(lists, [torch.full((2,), float(me.rank + n)) for n in goes])
        return digest([out, *lists])


def futures() -> list[float]:
    """Asynchronous collectives, taken by their futures, waits and polls."""
    with gloo() as me:
        first, second, third = (torch.full((4,), float(me.rank + n)) for n in range(3))
        one = dist.all_reduce(first, async_op=True)
        two = dist.all_reduce(second, op=dist.ReduceOp.MIN, async_op=True)
        three = dist.broadcast(third, src=0, async_op=True)
        assert one is not None
        assert two is not None
        assert three is not None
        future = one.get_future().then(lambda done: done.value()[0] * 2)
        two.wait()
        while not three.is_completed():
            pass
        three.wait()
        doubled = future.wait()
        return digest([doubled, second, third])


def by_methods() -> list[float]:
    """The methods of the process group, as trainers with wrappers of their own call them."""
    with gloo() as me:
        group = dist.group.WORLD
        assert group is not None
        value = torch.full((3,), me.rank + 1.0)
        group.allreduce([value]).wait()
        shared = torch.full((2,), float(me.rank))
        group.broadcast(shared, 1).wait()
        every = [[torch.empty(2) for _ in range(me.size)]]
        group.allgather(every, [shared + me.rank]).wait()
        peer = me.rank ^ 1
        got = torch.empty(3)
        if peer < me.size:
            sending = group.send([value * (me.rank + 1)], peer, 4)
            group.recv([got], peer, 4).wait()
            sending.wait()
        else:
            got.zero_()
        return digest([value, shared, *every[0], got])


def root_goes_round(rounds: int = 2) -> list[float]:
    """Each rank in turn is the root, called from one place."""
    with gloo() as me:
        value, summed = torch.full((3,), float(me.rank)), torch.full((2,), me.rank + 1.0)
        for _ in range(rounds):
            for root in range(me.size):
                dist.broadcast(value, root)
                value += root + 1
                dist.barrier()
        for root in range(me.size):
            dist.reduce(summed, root)
            summed = torch.full((2,), me.rank + value[0].item())
        return digest([value, summed])


def coalesced() -> list[float]:
    """Several tensors in one operation."""
    with gloo() as me:
        both = [torch.full((n + 1,), float(me.rank + n)) for n in range(2)]
        dist.all_reduce_coalesced(both)
        out = [[torch.empty(n + 1) for n in range(2)] for _ in range(me.size)]
        dist.all_gather_coalesced(out, [one + me.rank for one in both])
        return digest(both + [one for row in out for one in row])


def functional_collectives() -> list[float]:
    """Those that compilers and DTensor call."""
    with gloo() as me:
        mine = torch.arange(4.0) * (me.rank + 1)
        group = dist.group.WORLD
        summed = functional.all_reduce(mine, "sum", group)
        every = functional.all_gather_tensor(mine, gather_dim=0, group=group)
        wide = torch.arange(2.0 * me.size) + me.rank
        part = functional.reduce_scatter_tensor(wide, "sum", scatter_dim=0, group=group)
        swapped = functional.all_to_all_single(wide, None, None, group)
        return digest([functional.wait_tensor(one) for one in (summed, every, part, swapped)])


def functional_left_out(skipping: int) -> list[float]:
    """The same, in which one rank leaves out the second."""
    with gloo() as me:
        mine = torch.arange(4.0) * (me.rank + 1)
        group = dist.group.WORLD
        summed = functional.wait_tensor(functional.all_reduce(mine, "sum", group))
        if me.rank != skipping:
            functional.wait_tensor(functional.all_gather_tensor(mine, 0, group))
        return digest(functional.wait_tensor(functional.all_reduce(summed, "max", group)))


def subgroups() -> list[float]:
    """Groups of groups: pairs, rows and columns of a mesh."""
    with gloo() as me:
        mine, _ = new_subgroups(2)
        value = torch.full((3,), float(me.rank))
        dist.all_reduce(value, group=mine)
        mesh = init_device_mesh("cpu", (me.size // 2, 2), mesh_dim_names=("rows", "columns"))
        along = torch.full((2,), me.rank + 1.0)
        dist.all_reduce(along, group=mesh.get_group("rows"))
        across = torch.full((4,), me.rank + 1.0)
        dist.all_gather_into_tensor(torch.empty(8), across, group=mesh.get_group("columns"))
        dist.broadcast(across, group_src=0, group=mesh["columns"].get_group())
        return digest([value, along, across])


def two_groups(crossed: int = -1) -> list[float]:
    """Two groups of the same members, in turn. crossed: a rank that takes the second one first."""
    with gloo() as me:
        members = list(range(me.size))
        data, control = dist.new_group(members), dist.new_group(members)
        value, flag = torch.full((4,), float(me.rank)), torch.tensor([me.rank])
        for turn in range(3):
            calls: list[tuple[torch.Tensor, Any]] = [(value, data), (flag, control)]
            if me.rank == crossed and turn == 1:
                calls.reverse()
            for tensor, group in calls:
                dist.all_reduce(tensor, group=group)
        return digest([value, flag])


def again() -> list[float]:
    """Groups destroyed and made again, as after a change of members."""
    with gloo() as me:
        told = []
        for turn in range(2):
            group = dist.new_group(list(range(me.size)))
            value = torch.full((3,), float(me.rank + turn))
            dist.all_reduce(value, group=group)
            told += digest(value)
            dist.barrier()
            dist.destroy_process_group(group)
        return told


def not_a_member() -> list[float]:
    """A rank calls a collective of a group it is not in: torch warns, and goes on."""
    with gloo() as me:
        pair = dist.new_group([0, 1])
        value = torch.full((3,), float(me.rank))
        dist.all_reduce(value, group=pair)
        return digest(value)
