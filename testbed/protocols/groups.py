"""One rank's place in the world and the process groups it can reach the others through."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from testbed.model.topology import Coords, Topology

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Carrier:
    """What carries a model's traffic: tensor-parallel group and pipeline, None where the group
    would have one member. device: where the tensors must be that these groups carry.
    """

    tp: dist.ProcessGroup | None = None
    pp: dist.ProcessGroup | None = None
    device: torch.device = _CPU


@dataclass(frozen=True)
class Groups:
    """The process groups of one rank.

    rank: global rank. tp, cp, pp: its tensor-parallel group, context-parallel group and pipeline;
    None where the group would have one member. world: all ranks, None in a world of one. device:
    where the tensors must be that these groups carry. model: what the model's traffic goes over, if
    not over the same groups. What follows from these is worked out once: a protocol asks for it in
    every step.
    """

    topology: Topology
    rank: int
    tp: dist.ProcessGroup | None = None
    cp: dist.ProcessGroup | None = None
    pp: dist.ProcessGroup | None = None
    world: dist.ProcessGroup | None = None
    device: torch.device = _CPU
    model: Carrier | None = None

    @property
    def carrier(self) -> Carrier:
        """What carries the model's traffic."""
        return self.model or Carrier(self.tp, self.pp, self.device)

    @cached_property
    def at(self) -> Coords:
        """Position of this rank."""
        return self.topology.coords(self.rank)

    @cached_property
    def leads(self) -> bool:
        """Whether this rank belongs to the leader stage (pp_rank 0)."""
        return self.at.pp == 0

    @cached_property
    def in_stage(self) -> tuple[dist.ProcessGroup, ...]:
        """Groups a count is reduced over inside the stage: context-parallel first, then tensor."""
        return tuple(group for group in (self.cp, self.tp) if group is not None)
