"""Collectives and messages that only some ranks enter.

gloo takes no offence: the next operation of the rank that stayed away pairs with the one it missed.
The hang comes later, somewhere else.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from testbed.protocols import Batched, Groups, Party, Separate, World
from testbed.protocols.agreement import check_one_stage
from testbed.subjects.bugs.base import OverProtocol, Planted


class EarlyReturnWrite(Planted, Separate):
    """A rank whose pending map is empty does not enter the agreement on writes."""

    report = "#26921"
    summary = "returns before the agreement on writes where no write is pending"

    def writing_check(self, party: Party) -> None:
        """The agreement on writes, unless this rank has none."""
        if _waiting(party, "ack_write_queue"):
            super().writing_check(party)


class EarlyReturnLoad(Planted, Separate):
    """A rank whose pending map is empty does not enter the agreement on loads."""

    report = "#27489"
    summary = "returns before the agreement on loads where no load is pending"

    def loading_check(self, party: Party) -> None:
        """The agreement on loads, unless this rank has none."""
        if _waiting(party, "ack_load_queue"):
            super().loading_check(party)


class NoAgreement(Planted, Batched):
    """Every stage counts its own events."""

    report = "#22607"
    summary = "no agreement across stages: each completes what its own events say"

    def check(self, party: Party) -> None:
        """One stage's own step, as if there were no other."""
        check_one_stage(self.agreement, party)


class CpLeftOut(Planted, Batched):
    """The MIN is over the tensor-parallel group only."""

    report = "#25395"
    summary = "context-parallel ranks stay outside the reduction"

    def __init__(self, groups: Groups) -> None:
        super().__init__(replace(groups, cp=None))


class WorldInSkew(Planted, World):
    """The protocol ``world`` as it is: sound only where no stage is a step behind another."""

    report = "bytedance-iaas/sglang#676"
    summary = "one collective over all stages of a skewed pipeline"
    sound = "batched"


class SyncOnlyWithWork(Planted, Batched):
    """The leader stage polls behind its "nothing to do" return, the followers do not know of it."""

    report = "#20560"
    summary = "leader stage agrees only in steps in which it has work"

    def check(self, party: Party) -> None:
        """The step, unless this is an idle leader."""
        if not self.agreement.groups.leads or _busy(party):
            super().check(party)


class ShiftedStream(Planted, Batched):
    """A follower that has nothing to complete leaves its receive out: every later one takes the
    message before the one that was meant."""

    report = "bytedance-iaas/sglang#642"
    summary = "idle follower skips its receive: the stream is shifted from then on"

    def check(self, party: Party) -> None:
        """The step, unless this is an idle follower."""
        if self.agreement.groups.leads or _busy(party):
            super().check(party)


class FlushOnOneRank(Planted, Batched):
    """A flush that reached rank 0 alone agrees a second time in its step."""

    report = "bytedance-iaas/sglang#677"
    summary = "a flush on one rank makes a second agreement"
    flushed_in = 2

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self._round = -1

    def check(self, party: Party) -> None:
        """The step, and on one rank in one of them the flush after it."""
        super().check(party)
        self._round += 1
        if self._round == self.flushed_in and self.agreement.groups.rank == 0:
            self.flush_write_through_acks(party)

    def flush_write_through_acks(self, party: Party) -> None:
        """Complete what has become ready since."""
        writes, loads = self.agreement.agree(self._counts(party))
        party.writing_check(writes)
        party.loading_check(loads)


class PerRequestChecks(OverProtocol):
    """Sound, and the ground of the bugs below: after the step, one reduction in the stage for each
    request that waits for its prefetch.

    waiting: the scheduler's list of such requests, the same on every rank; a scenario's storage
    items of queue ``prefetch`` bear these names. No budget is promised: it grows with the list.
    """

    waiting: tuple[str, ...] = ("p0", "p1")

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        del self.promises["budget"]

    def check_hicache_events(self) -> None:
        """The step, then the loop over the requests."""
        super().check_hicache_events()
        for request in self.looked_at():
            self.check_prefetch_progress(request)

    def looked_at(self) -> Iterable[str]:
        """The requests that the loop comes to."""
        return self.waiting

    def check_prefetch_progress(self, request: str) -> bool:
        """Whether the prefetch is over on every rank of the stage."""
        return self._everywhere(request not in self._prefetches)

    def _everywhere(self, here: bool) -> bool:
        flag = torch.tensor([here], dtype=torch.int32)
        self._protocol.agreement.reduce_in_stage(flag)
        return bool(flag)


class UnknownRequest(Planted, PerRequestChecks):
    """A rank that has no prefetch of that request answers at once."""

    report = "#38268"
    summary = "per-request check returns before its reduce where the request is unknown"

    def check_prefetch_progress(self, request: str) -> bool:
        """Over on every rank, but for a rank that does not know it."""
        return request not in self._prefetches or super().check_prefetch_progress(request)


class LoopLeftEarly(Planted, PerRequestChecks):
    """A rank that is short of room for another request stops asking."""

    report = "#30760"
    summary = "loop of per-request checks ends early on a rank that is short of room"

    def looked_at(self) -> Iterable[str]:
        """Requests, as long as three quarters of this rank's own host pool are free."""
        for request in self.waiting:
            yield request
            if 4 * self._cache.host.free_pages < 3 * self._cache.host.total:
                return


class LoadBackPoll(Planted, PerRequestChecks):
    """A load is confirmed by the stage, but the question is put only where it is ready."""

    report = "#29483"
    summary = "load-back poll reduces only where the local event has fired"
    waiting = ()

    def check_hicache_events(self) -> None:
        """Ask about every load in flight, then the step."""
        for ack in list(self.controller.ack_load_queue) if self.controller else ():
            self.poll_load_back(ack)
        super().check_hicache_events()

    def poll_load_back(self, ack: Any) -> bool:
        """Whether the load is ready on every rank of the stage."""
        return bool(ack.finish_event.query()) and self._everywhere(True)


def _waiting(party: Party, queue: str) -> bool:
    """Whether a transfer is pending: there is an ACK for each entry of the pending map."""
    return bool(getattr(party.controller, queue, ()))


def _busy(party: Party) -> bool:
    return _waiting(party, "ack_write_queue") or _waiting(party, "ack_load_queue")
