"""separate: one agreement for writes, another for loads, a third for storage."""

from collections.abc import Sequence
from typing import Any

import torch

from testbed.protocols.agreement import (
    Agreement,
    Party,
    check_one_stage,
    check_storage,
    count_ready,
)
from testbed.protocols.groups import Groups


class Separate:
    """SGLang 0.5.13 to 0.5.18: what batching replaced.

    Where a release skips an agreement on a rank without a controller, this one enters it with 0.
    """

    name = "separate"
    summary = "one agreement for writes, one for loads, one for storage in the stage"
    stage_local = True

    def __init__(self, groups: Groups) -> None:
        self.agreement = Agreement(groups)

    def check(self, party: Party) -> None:
        """Agree on writes and complete them, then on loads, then on storage."""
        self.agreement.drain_sends()
        if self.agreement.groups.topology.pp == 1:
            check_one_stage(self.agreement, party)
            return
        self.writing_check(party)
        self.loading_check(party)
        if party.storage:
            check_storage(self.agreement, party)

    def writing_check(self, party: Party) -> None:
        """The agreement on writes."""
        controller = party.controller
        party.writing_check(self._agree_on(controller.ack_write_queue if controller else ()))

    def loading_check(self, party: Party) -> None:
        """The agreement on loads: a message of its own, told apart from the first by order only."""
        controller = party.controller
        party.loading_check(self._agree_on(controller.ack_load_queue if controller else ()))

    def _agree_on(self, acks: Sequence[Any]) -> int:
        ready = count_ready(acks) if self.agreement.groups.leads else 0
        return self.agreement.agree(torch.tensor([ready], dtype=torch.int32))[0]
