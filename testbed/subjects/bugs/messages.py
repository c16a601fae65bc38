"""What goes down the pipeline, under which tag, out of whose buffer, and when it is waited for."""

from typing import Any

import torch

from testbed.protocols import Agreement, Batched, Fused, Groups, Party
from testbed.subjects.bugs.base import OverProtocol, Planted


class PollOnly(Planted, Batched):
    """Sends are asked whether they are complete, never waited for: gloo never says yes."""

    report = "#28902"
    summary = "sends are reaped by polling only, so none ever is"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement = _Polling(groups)


class _Polling(Agreement):
    def drain_sends(self) -> None:
        self.sends = [send for send in self.sends if not send.is_completed()]


class NeverDrained(Planted, Batched):
    """Sends are collected and nobody comes for them."""

    report = "#28916"
    summary = "sends are never drained"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement = _Hoarding(groups)


class _Hoarding(Agreement):
    def drain_sends(self) -> None:
        """Left for later."""


class SharedTag(Planted, Batched):
    """The counts go under the tag of the activations: which of the two a receive takes is a matter
    of order."""

    report = "NVIDIA/TensorRT-LLM#7455, bytedance-iaas/sglang#642"
    summary = "counts and activations share a tag"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement.tag = 0


class NoCopy(Planted, Batched):
    """One preallocated vector is sent as it is, and cleared for the next round before the message
    has left."""

    report = "bytedance-iaas/sglang#677"
    summary = "sends its vector without a copy and clears it before the wait"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement = _Uncopied(groups)
        self._vector = torch.zeros(2, dtype=torch.int32)

    def check(self, party: Party) -> None:
        """The step, and the vector ready for the next one."""
        super().check(party)
        self._vector.zero_()

    def _counts(self, party: Party) -> torch.Tensor:
        return self._vector.copy_(super()._counts(party))


class _Uncopied(Agreement):
    def message(self, counts: torch.Tensor) -> torch.Tensor:
        return counts


class FirstStageOnly(Planted, Batched):
    """Only the first stage attaches the count to its message; the next one hands on none."""

    report = "#22878"
    summary = "the count comes from the first stage only: the third stage gets none"

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.agreement = _FromFirstStage(groups)


class _FromFirstStage(Agreement):
    def message(self, counts: torch.Tensor) -> torch.Tensor:
        return counts.clone() if self.groups.leads else torch.zeros_like(counts)


class DefaultDtype(Planted, Batched):
    """A follower receives into a tensor of torch's default integer type."""

    report = "pytorch/pytorch#91535"
    summary = "leader sends int32, follower receives int64"

    def _counts(self, party: Party) -> torch.Tensor:
        return super()._counts(party) if self.agreement.groups.leads else torch.tensor([0, 0])


class OwnPoolsOnly(Planted, OverProtocol):
    """The vector has an entry for each sidecar pool that the rank itself owns."""

    report = "#39267"
    summary = "length of the vector follows the rank's own pools, so stages differ"
    made_of = Fused

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        owned = self.controller.extra_host_mem_release_queues if self.controller else {}
        self.sidecars = tuple(owned)
