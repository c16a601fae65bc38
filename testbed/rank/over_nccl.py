"""A rank's process groups over NCCL, beside those over gloo: what an engine's model goes over."""

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from testbed.model.topology import GroupSpec
from testbed.protocols.groups import Carrier, Groups

BACKEND = "nccl"

# A call of NCCL returns when its kernel is enqueued. So, it returns when the kernel is over: a rank
# that waits is seen to wait in the operation, as over gloo, and no watchdog of torch's ends it.
_BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"


def add_nccl(
    groups: Groups,
    names: Mapping[Any, GroupSpec],
    device: torch.device,
    timeout: timedelta,
    *,
    agree: bool,
) -> tuple[Groups, Mapping[Any, GroupSpec]]:
    """The rank's groups with NCCL for the model's traffic, and the names to report all of them by.

    Every rank of the world must call it. device: the GPU that is this process's current one.
    timeout: NCCL's own. agree: the agreement goes over NCCL too. Connections are made here: that
    takes seconds, and nobody is to take it for a hang.
    """
    os.environ[_BLOCKING_WAIT] = "1"
    topology, rank = groups.topology, groups.rank
    known = dict(names)

    def group(spec: GroupSpec) -> dist.ProcessGroup:
        made: dist.ProcessGroup = dist.new_group(
            list(spec.ranks), timeout=timeout, backend=BACKEND, use_local_synchronization=True
        )
        known[made] = spec.on_nccl()
        dist.all_reduce(torch.ones(1, device=device), group=made)
        return made

    def of_several(spec: GroupSpec) -> dist.ProcessGroup | None:
        return group(spec) if len(spec.ranks) > 1 else None

    tp, cp = of_several(topology.tp_group(rank)), of_several(topology.cp_group(rank))
    pp = of_several(topology.pp_group(rank))
    world = group(GroupSpec("world", tuple(range(topology.size))))
    if pp is not None:
        _connect(pp, groups.at.pp, topology.pp, device)
    model = Carrier(tp, pp, device)
    if not agree:
        return replace(groups, model=model), known
    agreed = replace(groups, tp=tp, cp=cp, pp=pp, world=world, device=device, model=model)
    return agreed, known


def _connect(pipeline: dist.ProcessGroup, stage: int, stages: int, device: torch.device) -> None:
    """One message down the pipeline: NCCL connects two ranks when the first one goes between
    them.
    """
    message = torch.ones(1, device=device)
    if stage > 0:
        dist.recv(message, group_src=stage - 1, group=pipeline)
    if stage + 1 < stages:
        dist.send(message, group_dst=stage + 1, group=pipeline)
