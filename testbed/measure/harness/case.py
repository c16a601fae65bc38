"""What the ranks of another harness do in a case: groups of their own, and a series of collectives.

Called with the default group initialised, by whatever harness, on every rank. The fleet runs the
same as scenarios.
"""

import os
import signal
from enum import Enum

import torch
import torch.distributed as dist

from testbed.model.topology import Topology
from testbed.scripted_events import block_for_ever

VICTIM = 1
"""The rank that is killed, or that leaves a collective out."""
STEPS, FAULTY_STEP = 4, 1


class Kind(str, Enum):
    """What happens to the victim. SKIPPED: it leaves out a collective and ends with its part done.
    LIVES_ON: likewise, but it stays, as a server does that waits for its next request."""

    NULL = "null"
    CRASH = "crash"
    SKIPPED = "skipped"
    LIVES_ON = "lives-on"


def topology_of(world: int) -> Topology:
    """Two stages where the world can be halved, one otherwise."""
    return Topology(pp=2, tp=world // 2) if world % 2 == 0 else Topology(tp=world)


def play(kind: Kind) -> None:
    """This rank's part, groups included."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for spec in topology_of(world).groups:
        group = dist.new_group(list(spec.ranks))
        if rank in spec.ranks:
            dist.barrier(group)
    if kind is Kind.NULL:
        return
    counts = torch.ones(2, dtype=torch.int32)
    for step in range(STEPS):
        if rank == VICTIM and step == FAULTY_STEP:
            if kind is Kind.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            continue
        dist.all_reduce(counts, op=dist.ReduceOp.MIN)
    if rank == VICTIM and kind is Kind.LIVES_ON:
        block_for_ever()
