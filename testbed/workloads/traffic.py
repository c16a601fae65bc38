"""The traffic of the model that an engine runs beside its cache: what the subject shares its groups
with.

The model, once per scheduler step and before the subject's check, as in a pipelined scheduler: a
stage receives the activations of its microbatch from the stage above, reduces over its
tensor-parallel group, and sends its own activations to the stage below. The send is waited for in
the next step. Over gloo it shares the pipeline's group with the subject, under tag 0, the one that
everybody gets who asks for none; over NCCL it goes from GPU to GPU, on groups that the subject
shares only if it agrees over NCCL too. Microbatch n belongs to step n, unless the stage is a
microbatch behind: then it takes the next one in before it computes its own, as a stage whose peer
above is a step ahead does.
"""

from typing import cast

import torch
import torch.distributed as dist

from testbed.protocols.groups import Groups
from testbed.workloads.base import Bench

TOKENS, HIDDEN = 4, 16
"""Activations of one microbatch: float32 of shape [TOKENS, HIDDEN]."""


class Traffic:
    """One rank's share of the model's traffic."""

    def __init__(self, groups: Groups, bench: Bench) -> None:
        self._groups = groups
        self._bench = bench
        self._received = 0
        self._sent: dist.Work | None = None

    # What it is called is what the recorder tells as the caller (``events.MODEL``): both ends of a
    # message have to come from here.
    def model(self) -> None:
        """This step's microbatch."""
        self.drain()
        carrier, stage = self._groups.carrier, self._groups.at.pp
        pipeline = carrier.pp
        activations = torch.ones(TOKENS, HIDDEN, device=carrier.device)
        if pipeline is not None and stage > 0:
            for _ in range(self._to_receive()):
                dist.recv(activations, group_src=stage - 1, group=pipeline)
        if carrier.tp is not None:
            dist.all_reduce(activations, group=carrier.tp)
        if pipeline is not None and stage + 1 < self._groups.topology.pp:
            # Nobody writes into them any more: the next step makes its own.
            send = dist.isend(activations, group_dst=stage + 1, group=pipeline)
            self._sent = cast(dist.Work, send)

    def drain(self) -> None:
        """Wait for the send of the last step."""
        if self._sent is not None:
            self._sent.wait()
            self._sent = None

    def _to_receive(self) -> int:
        step, last = self._bench.clock.step, self._bench.scenario.steps - 1
        # In the last step there is no next one left to take.
        behind = step < last and any(lag() for lag in self._bench.hooks.lags)
        due = step + 1 + behind - self._received
        self._received += due
        return due
