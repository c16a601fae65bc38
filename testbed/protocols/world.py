"""world: one collective over all ranks of all stages."""

import torch
import torch.distributed as dist

from testbed.protocols.agreement import Agreement, Party, check_storage, ready_counts
from testbed.protocols.groups import Groups


class World:
    """bytedance-iaas/sglang #676, withdrawn in #677.

    Every stage counts its own events, so none is told to complete what is not ready there, and none
    stalls. But no stage can be a step ahead of another: where one waits in its pipeline for what
    the stage above sends a step later, each waits for the other for ever.
    """

    name = "world"
    summary = (
        "one collective over all ranks of all stages: a circular wait if the pipeline is skewed"
    )
    stage_local = True

    def __init__(self, groups: Groups) -> None:
        self.agreement = Agreement(groups)

    def check(self, party: Party) -> None:
        """One vector [writes, loads] reduced over the world; storage counts after it, per stage."""
        counts = self.agreement.placed(self._counts(party))
        if self.agreement.groups.world is not None:
            dist.all_reduce(counts, op=dist.ReduceOp.MIN, group=self.agreement.groups.world)
        writes, loads = counts.tolist()
        party.writing_check(writes)
        party.loading_check(loads)
        if party.storage:
            check_storage(self.agreement, party)

    def _counts(self, party: Party) -> torch.Tensor:
        return ready_counts(party)
