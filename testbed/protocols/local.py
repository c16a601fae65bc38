"""local: no agreement across stages at all. What was there before any of the others."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from testbed.protocols.agreement import Agreement, Party, count_ready, storage_sizes
from testbed.protocols.groups import Groups


class Local:
    """SGLang up to 0.5.12, with its published mistakes: not sound.

    A rank that has nothing pending in a queue returns before that queue's reduction, in which its
    peers then wait for it. Stages count for themselves, and so do context-parallel positions: only
    tensor-parallel peers agree, on a count and not on what is counted.
    """

    name = "local"
    summary = "no agreement across stages, and none on a rank with nothing pending: not sound"
    stage_local = False

    def __init__(self, groups: Groups) -> None:
        self.agreement = Agreement(groups)

    def check(self, party: Party) -> None:
        """Writes, then loads, then storage, each with a MIN over the tensor-parallel group."""
        controller = party.controller
        if controller is not None:
            self.writing_check(party, controller.ack_write_queue)
            self.loading_check(party, controller.ack_load_queue)
        if party.storage:
            self.drain_storage_control_queues(party)

    def writing_check(self, party: Party, acks: Sequence[Any]) -> None:
        """Complete the writes that are ready on every tensor-parallel peer."""
        if party.pending()["write"]:
            party.writing_check(self._least([count_ready(acks)])[0])

    def loading_check(self, party: Party, acks: Sequence[Any]) -> None:
        """Complete the loads that are ready on every tensor-parallel peer."""
        if party.pending()["load"]:
            party.loading_check(self._least([count_ready(acks)])[0])

    def drain_storage_control_queues(self, party: Party) -> None:
        """Take what every tensor-parallel peer has. AttributeError without a controller."""
        party.drain_storage(self._least(storage_sizes(party)))

    def _least(self, counts: list[int]) -> list[int]:
        if self.agreement.groups.tp is None:
            return counts
        vector = self.agreement.placed(torch.tensor(counts, dtype=torch.int32))
        dist.all_reduce(vector, op=dist.ReduceOp.MIN, group=self.agreement.groups.tp)
        least: list[int] = vector.tolist()
        return least
