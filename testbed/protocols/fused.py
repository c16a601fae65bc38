"""fused: one vector for writes, loads and storage, through one agreement."""

import torch

from testbed.protocols.agreement import Agreement, Party, apply_all, stage_counts, vector_length
from testbed.protocols.groups import Groups


class Fused:
    """SGLang 0.5.20 and later.

    Followers bring zeros of the leader's length, since the message overwrites them in place and
    gloo reports no message that is too short. Storage counts of the leader stage reach every stage:
    a follower with fewer items waits for one. Storage is applied only where there is a controller.
    """

    name = "fused"
    summary = "one agreement for writes, loads and storage"
    stage_local = False

    def __init__(self, groups: Groups) -> None:
        self.agreement = Agreement(groups)

    def check(self, party: Party) -> None:
        """One agreement on everything; with one stage it is that stage's MIN alone."""
        self.agreement.drain_sends()
        apply_all(party, self.agreement.agree(self._counts(party)))

    def _counts(self, party: Party) -> torch.Tensor:
        if self.agreement.groups.leads:
            return stage_counts(party)
        return torch.zeros(vector_length(party), dtype=torch.int32)
