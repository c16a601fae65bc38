"""What is counted, how counts are reduced, and how they are applied."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from testbed.protocols import Agreement, Batched, Deferred, Groups, Party, World
from testbed.protocols.agreement import TRANSFERS, storage_sizes
from testbed.subjects.bugs.base import OverProtocol, Planted


class MaxForMin(Planted, Batched):
    """The fastest rank of the leader stage speaks for all."""

    report = "#27489"
    summary = "MAX where MIN is meant"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement = _Max(groups)


class _Max(Agreement):
    def reduce_in_stage(self, counts: torch.Tensor) -> None:
        for group in self.groups.in_stage:
            dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=group)


class LeaderOnlyMin(Planted, World):
    """Only the leader stage counts, and yet the MIN is over all stages: the followers' zeros
    win."""

    report = "#33473"
    summary = "leader-only counts under a MIN over all stages: nothing ever advances"

    def _counts(self, party: Party) -> torch.Tensor:
        leads = self.agreement.groups.leads
        return super()._counts(party) if leads else torch.zeros(TRANSFERS, dtype=torch.int32)


class AnyReady(Planted, Batched):
    """ACKs are popped from the head, but whichever are ready are counted."""

    report = "bytedance-iaas/sglang#677"
    summary = "counts every ready ACK instead of the ready prefix"

    def _counts(self, party: Party) -> torch.Tensor:
        counts = super()._counts(party)
        if self.agreement.groups.leads and party.controller is not None:
            counts[0] = _ready(party.controller.ack_write_queue)
            counts[1] = _ready(party.controller.ack_load_queue)
        return counts


def _ready(acks: Sequence[Any]) -> int:
    return sum(ack.finish_event.query() for ack in acks)


class SlotsSwapped(Planted, Batched):
    """Followers unpack the vector in the other order."""

    report = "#33473"
    summary = "writes and loads swapped where a follower unpacks the vector"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement = _Swapped(groups)


class _Swapped(Agreement):
    def agree(self, counts: torch.Tensor) -> list[int]:
        agreed = super().agree(counts)
        return agreed if self.groups.leads else agreed[::-1]


class AppliedTwice(Planted, Batched):
    """The flush after the step completes the same count of writes once more."""

    report = "#30511"
    summary = "an agreed count of writes is applied twice in its step"

    def check(self, party: Party) -> None:
        """The step, the second ``writing_check`` of it included."""
        self.agreement.drain_sends()
        writes, loads = self.agreement.agree(self._counts(party))
        party.writing_check(writes)
        party.loading_check(loads)
        party.writing_check(writes)


class StaleCounts(Planted, Batched):
    """Every second round does without the agreement and takes the result of the last one again."""

    report = "#39903"
    summary = "a round without sync reuses the counts of the last one"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement = _Remembering(groups)


class _Remembering(Agreement):
    _calls = 0
    _last: list[int]

    def agree(self, counts: torch.Tensor) -> list[int]:
        self._calls += 1
        if self._calls % 2:
            self._last = super().agree(counts)
        return self._last


class CountedAgain(Planted, Deferred):
    """Counts before it completes what it counted last: that is still in the queue then."""

    report = "#29109, #39903"
    summary = "counts under way are counted again: more is popped than the queue holds"

    def check(self, party: Party) -> None:
        """The step, in the wrong order."""
        self.agreement.drain_sends()
        agreed = self._pending.collect()
        self._pending.begin(self._counts(party))
        if agreed is not None:
            party.writing_check(agreed[0])
            party.loading_check(agreed[1])


class StorageMerged(Planted, Batched):
    """Storage counts take the way of the others: from the leader stage to all."""

    report = "#33473"
    summary = "storage counts merged across stages that own other pools"

    def check(self, party: Party) -> None:
        """The step, with one more agreement for all stages instead of one in each."""
        self.agreement.drain_sends()
        writes, loads = self.agreement.agree(self._counts(party))
        party.writing_check(writes)
        party.loading_check(loads)
        if party.storage:
            sizes = torch.tensor(storage_sizes(party), dtype=torch.int32)
            party.drain_storage(self.agreement.agree(sizes))


class NoWait(Planted, OverProtocol):
    """A write that was commanded is taken for finished."""

    report = "#33473"
    summary = "completes a commanded write without waiting for its own event"

    def writing_check(self, count: int) -> None:
        """Complete ``count`` writes at once."""
        if self.controller is None:
            return
        for _ in range(count):
            for ack_id in self.controller.ack_write_queue.pop(0).node_ids:
                self._finish_write(self.controller, ack_id)
