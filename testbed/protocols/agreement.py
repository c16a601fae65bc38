"""What the protocols share: counting, the reduction in a stage, the chain down the pipeline.

The model, as SGLang has it from 0.5.13 on (``UnifiedRadixCache._all_reduce`` and ``_pp_sync``):

- Only the leader stage counts. It reduces its counts with MIN over its context-parallel group, then
  over its tensor-parallel group. No collective spans two stages.
- The result goes down the pipeline by messages, one chain per (cp, tp) position. A stage receives
  from the stage above and sends a *copy* on, asynchronously, under a tag of its own: gloo sends
  what the buffer holds when the receiver comes, so the buffer must be nobody else's.
- A send is waited for at the start of the next step. gloo completes it only once its receive has
  been posted, so this bounds a stage to one round ahead of the next one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast
from typing import Protocol as TypingProtocol

import torch
import torch.distributed as dist

from testbed.cache import TransferController
from testbed.protocols.groups import Groups

TAG = int.from_bytes(b"kvAg", "big")
"""Tag of the agreement's messages: engines reserve one so that no other stream can mix in."""

TRANSFERS = 2
STORAGE_QUEUES = 3


class Party(TypingProtocol):
    """The rank a protocol acts on.

    controller: None on a rank without one. storage: whether storage queues are kept. sidecars:
    every sidecar pool of the scenario, in one order for all ranks, whether this rank owns it or
    not.
    """

    controller: TransferController | None
    storage: bool
    sidecars: tuple[str, ...]

    def pending(self) -> Mapping[Any, Sequence[Any]]:
        """What is remembered under ``write``, ``load``, ``backup`` and ``prefetch``."""

    def writing_check(self, count: int) -> None:
        """Complete ``count`` writes from the head of the queue. IndexError if it holds fewer."""

    def loading_check(self, count: int) -> None:
        """Complete ``count`` loads from the head of the queue. IndexError if it holds fewer."""

    def drain_storage(self, counts: Sequence[int]) -> None:
        """Take that many items from the storage queues, in the order of ``storage_sizes``."""


class Protocol(TypingProtocol):
    """One way to agree. ``check`` runs once per scheduler step, on every rank.

    summary: one line for lists. stage_local: no storage count leaves its stage.
    """

    name: str
    summary: str
    stage_local: bool
    agreement: "Agreement"

    def check(self, party: Party) -> None:
        """Agree on what is complete and have ``party`` complete it."""


class Agreement:
    """One rank's end of the agreement. Counts are int32 tensors of shape [n], on the CPU until they
    are ``placed``.

    tag: of its messages, see TAG.
    """

    tag = TAG

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.sends: list[dist.Work] = []

    def drain_sends(self) -> None:
        """Wait for every outstanding send, then forget them all."""
        for send in self.sends:
            send.wait()
        self.sends.clear()

    def placed(self, counts: torch.Tensor) -> torch.Tensor:
        """The counts where the groups can carry them: the same tensor, or a copy on the GPU."""
        return counts.to(self.groups.device)

    def reduce_in_stage(self, counts: torch.Tensor) -> None:
        """MIN over this rank's own stage, in place. The counts must be ``placed``."""
        for group in self.groups.in_stage:
            dist.all_reduce(counts, op=dist.ReduceOp.MIN, group=group)

    def agree(self, counts: torch.Tensor) -> list[int]:
        """The leader stage's MIN, on every rank. What followers put into ``counts`` is lost."""
        counts = self.placed(counts)
        if self.groups.leads:
            self.reduce_in_stage(counts)
        self._pass_down(counts)
        agreed: list[int] = counts.tolist()
        return agreed

    def _pass_down(self, counts: torch.Tensor) -> None:
        pipeline = self.groups.pp
        if pipeline is None:
            return
        stage = self.groups.at.pp
        if stage > 0:
            dist.recv(counts, group_src=stage - 1, group=pipeline, tag=self.tag)
        if stage + 1 < self.groups.topology.pp:
            message = self.message(counts)
            send = dist.isend(message, group_dst=stage + 1, group=pipeline, tag=self.tag)
            self.sends.append(cast(dist.Work, send))

    def message(self, counts: torch.Tensor) -> torch.Tensor:
        """What is sent on for ``counts``: a copy, since a send reads its buffer when it is
        received."""
        return counts.clone()


def count_ready(acks: Sequence[Any]) -> int:
    """Length of the prefix of ``acks`` whose own finish event has fired; asks no event past it."""
    for place, ack in enumerate(acks):
        if not ack.finish_event.query():
            return place
    return len(acks)


def storage_sizes(party: Party) -> list[int]:
    """Items in each storage queue: prefetch hits, backup ACKs, host releases, then the sidecars.

    Raises AttributeError where there is no controller, as SGLang up to 0.5.19 does; a protocol that
    must not asks for the controller first.
    """
    controller = cast(TransferController, party.controller)
    queues = (
        controller.prefetch_hit_queue,
        controller.ack_backup_queue,
        controller.host_mem_release_queue,
    )
    sidecars = controller.extra_host_mem_release_queues
    return [
        *(items.qsize() for items in queues),
        *(sidecars[name].qsize() if name in sidecars else 0 for name in party.sidecars),
    ]


def ready_counts(party: Party) -> torch.Tensor:
    """Ready writes and ready loads, zeros without a controller: int32, shape [2]."""
    controller = party.controller
    if controller is None:
        return torch.zeros(TRANSFERS, dtype=torch.int32)
    counts = [count_ready(controller.ack_write_queue), count_ready(controller.ack_load_queue)]
    return torch.tensor(counts, dtype=torch.int32)


def leader_counts(agreement: Agreement, party: Party) -> torch.Tensor:
    """``ready_counts`` on the leader stage; a follower brings zeros and asks no event."""
    if agreement.groups.leads:
        return ready_counts(party)
    return torch.zeros(TRANSFERS, dtype=torch.int32)


def stage_counts(party: Party) -> torch.Tensor:
    """Ready writes, ready loads and, with storage on, the storage sizes; zeros without a
    controller.

    One length on every rank of a scenario, whatever a rank has: int32, shape [2] or [5 + sidecars].
    """
    controller = party.controller
    if controller is None:
        return torch.zeros(vector_length(party), dtype=torch.int32)
    counts = [count_ready(controller.ack_write_queue), count_ready(controller.ack_load_queue)]
    if party.storage:
        counts += storage_sizes(party)
    return torch.tensor(counts, dtype=torch.int32)


def vector_length(party: Party) -> int:
    """Length of the vector that carries everything at once."""
    return TRANSFERS + (STORAGE_QUEUES + len(party.sidecars) if party.storage else 0)


def apply_all(party: Party, counts: Sequence[int]) -> None:
    """Complete what one vector says: writes, loads, then storage where there is a controller."""
    writes, loads, *storage = counts
    party.writing_check(writes)
    party.loading_check(loads)
    if storage and party.controller is not None:
        party.drain_storage(storage)


def check_one_stage(agreement: Agreement, party: Party) -> None:
    """The pp = 1 path: one vector carries writes, loads and storage through one MIN.

    SGLang 0.5.13 to 0.5.19 (``_sync_hicache_ready_counts``), but for a rank without a controller:
    there it sends a shorter vector than its peers, here zeros of the same length.
    """
    counts = agreement.placed(stage_counts(party))
    agreement.reduce_in_stage(counts)
    apply_all(party, counts.tolist())


def check_storage(agreement: Agreement, party: Party) -> None:
    """Agree on the storage queues inside the stage only, and drain them.

    Stages may own different sidecar pools, so a count of one must not reach another. Raises
    AttributeError on a rank without a controller, whose peers then wait for it in the reduction.
    """
    sizes = agreement.placed(torch.tensor(storage_sizes(party), dtype=torch.int32))
    agreement.reduce_in_stage(sizes)
    party.drain_storage(sizes.tolist())
