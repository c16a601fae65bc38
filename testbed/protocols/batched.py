"""batched: one agreement for writes and loads, storage apart and inside the stage. The seed."""

import torch

from testbed.protocols.agreement import (
    Agreement,
    Party,
    check_one_stage,
    check_storage,
    leader_counts,
)
from testbed.protocols.groups import Groups


class Batched:
    """SGLang 0.5.19, with storage as its description has it: stage-local."""

    name = "batched"
    summary = "one agreement for writes and loads, storage in the stage"
    stage_local = True

    def __init__(self, groups: Groups) -> None:
        self.agreement = Agreement(groups)

    def check(self, party: Party) -> None:
        """One vector [writes, loads] for all stages; storage counts after it, per stage."""
        self.agreement.drain_sends()
        if self.agreement.groups.topology.pp == 1:
            check_one_stage(self.agreement, party)
            return
        writes, loads = self.agreement.agree(self._counts(party))
        party.writing_check(writes)
        party.loading_check(loads)
        if party.storage:
            check_storage(self.agreement, party)

    def _counts(self, party: Party) -> torch.Tensor:
        return leader_counts(self.agreement, party)
