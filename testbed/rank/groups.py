"""How a rank meets the others of its case: its GPU, the store they find each other through, its
process groups.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store  # where the type stubs have them

from testbed.device import CudaDevice
from testbed.model.errors import EnvironmentFault
from testbed.model.scenario import Scenario
from testbed.model.topology import GroupSpec, Topology
from testbed.protocols.groups import Groups
from testbed.rank.folder_store import FolderStore
from testbed.rank.over_nccl import add_nccl
from testbed.rank.remote_store import FarStore
from testbed.rank.spec import RankSeat

# gloo's own timeout is no judge of a case: the controller's deadline comes long before.
_GLOO_TIMEOUT = timedelta(minutes=30)
_BUILD_TIMEOUT = timedelta(seconds=30)
_NCCL_BUILD_TIMEOUT = timedelta(seconds=120)

_stores: list[Store] = []
"""Held for the rank's life: torch keeps the C++ half of a Python store only."""


class Met(NamedTuple):
    """gpu: the rank's own, None if its scenario wants none. names: to report its groups by."""

    gpu: CudaDevice | None
    groups: Groups
    names: Mapping[Any, GroupSpec]


def meet(seat: RankSeat) -> Met:
    """Build the groups of the seat's rank, with all its peers. Raises EnvironmentFault where they
    cannot meet, and what torch raises where one of them does not come.
    """
    scenario = seat.scenario
    gpu = _gpu(scenario, seat.rank)
    _stores.append(_store(seat))
    groups, names = build_groups(scenario.topology, seat.rank, _stores[-1])
    if gpu is not None and scenario.backend == "nccl":
        agree = scenario.agree_on == "nccl"
        groups, names = add_nccl(groups, names, gpu.torch_device, _GLOO_TIMEOUT, agree=agree)
    return Met(gpu, groups, names)


def _gpu(scenario: Scenario, rank: int) -> CudaDevice | None:
    """The rank's GPU, if the scenario wants one; here, after the fork, CUDA is first touched."""
    if not scenario.needs_gpu:
        return None
    return CudaDevice(place_on_machine(rank), alone=scenario.backend == "nccl")


def place_on_machine(rank: int) -> int:
    """How many ranks of this machine come before this one. torchrun numbers a machine's hosts; an
    oversubscribed host has every ``WORLD_SIZE``-th rank.
    """
    if "LOCAL_RANK" not in os.environ:
        return rank
    local, hosts, world = (
        int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    )
    return local + rank // world * hosts


def _store(seat: RankSeat) -> Store:
    ranks = seat.scenario.topology.size
    if seat.keys is not None and seat.scenario.backend == "nccl":
        raise EnvironmentFault(
            "NCCL finds its ranks on one machine only: start no hosts elsewhere, or use gloo"
        )
    if seat.keys is not None:
        return FarStore(seat.keys, seat.case, seat.rank, _BUILD_TIMEOUT)
    if seat.scenario.backend != "nccl":
        return FolderStore(seat.store, ranks, _BUILD_TIMEOUT)
    # NCCL's own threads ask the store too, and must not have to come through Python for it.
    store = FileStore(f"{seat.store}/store", ranks)
    store.set_timeout(_NCCL_BUILD_TIMEOUT)
    return store


def build_groups(
    topology: Topology, rank: int, store: Store, timeout: timedelta = _GLOO_TIMEOUT
) -> tuple[Groups, Mapping[Any, GroupSpec]]:
    """The default group and this rank's tp, cp and pp groups over gloo, and the names to report
    them by. timeout: gloo's own.
    """
    world_size = topology.size
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    names: dict[Any, GroupSpec] = {None: GroupSpec("world", tuple(range(world_size)))}
    names[dist.group.WORLD] = names[None]

    def group(spec: GroupSpec) -> dist.ProcessGroup | None:
        if len(spec.ranks) == 1:
            return None
        made: dist.ProcessGroup = dist.new_group(
            list(spec.ranks), timeout=timeout, backend="gloo", use_local_synchronization=True
        )
        names[made] = spec
        return made

    groups = Groups(
        topology=topology,
        rank=rank,
        tp=group(topology.tp_group(rank)),
        cp=group(topology.cp_group(rank)),
        pp=group(topology.pp_group(rank)),
        world=dist.group.WORLD,
    )
    return groups, names
