"""deferred: the reduction goes on while the model runs, its result is used a step later."""

from typing import cast

import torch
import torch.distributed as dist

from testbed.protocols.agreement import Agreement, Party, check_storage, leader_counts
from testbed.protocols.groups import Groups


class Deferred:
    """Proposed in SGLang #39903, to take the reduction off the critical path.

    In a step a rank first completes what was counted in the step before, and only then counts anew:
    so no ACK is counted twice, and what was counted is still at the head of the queue when its
    turn comes. In the first step there is nothing to complete; what is counted in the last one is
    waited for with the sends, and dropped. Storage is not deferred.
    """

    name = "deferred"
    summary = "one agreement for writes and loads, reduced meanwhile and used one step later"
    stage_local = True

    def __init__(self, groups: Groups) -> None:
        self._pending = Pending(groups)
        self.agreement: Agreement = self._pending

    def check(self, party: Party) -> None:
        """Complete what the last step counted, then count."""
        self.agreement.drain_sends()
        agreed = self._pending.collect()
        if agreed is not None:
            writes, loads = agreed
            party.writing_check(writes)
            party.loading_check(loads)
        self._pending.begin(self._counts(party))
        if party.storage:
            check_storage(self.agreement, party)

    def _counts(self, party: Party) -> torch.Tensor:
        return leader_counts(self.agreement, party)


class Pending(Agreement):
    """An agreement in two halves. Only the first group of the leader stage is reduced meanwhile:
    another one, with context-parallel ranks, needs its result.
    """

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self._counts: torch.Tensor | None = None
        self._reduction: dist.Work | None = None

    def begin(self, counts: torch.Tensor) -> None:
        """Start to reduce them. They must not be touched until ``collect`` gives the result."""
        self._counts = counts = self.placed(counts)
        if self.groups.leads and self.groups.in_stage:
            group = self.groups.in_stage[0]
            reduction = dist.all_reduce(counts, op=dist.ReduceOp.MIN, group=group, async_op=True)
            self._reduction = cast(dist.Work, reduction)

    def collect(self) -> list[int] | None:
        """The leader stage's MIN of what was begun, on every rank; None if nothing was."""
        counts, self._counts = self._counts, None
        if counts is None:
            return None
        self._wait()
        if self.groups.leads:
            for group in self.groups.in_stage[1:]:
                dist.all_reduce(counts, op=dist.ReduceOp.MIN, group=group)
        self._pass_down(counts)
        agreed: list[int] = counts.tolist()
        return agreed

    def drain_sends(self) -> None:
        """Wait for every outstanding send, and for the reduction that is under way."""
        super().drain_sends()
        self._wait()

    def _wait(self) -> None:
        reduction, self._reduction = self._reduction, None
        if reduction is not None:
            reduction.wait()
