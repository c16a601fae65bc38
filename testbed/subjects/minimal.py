"""The minimal cache with one of the protocols: what a sound implementation does, and no more.

The model of a step, as in SGLang's ``UnifiedRadixCache`` from 0.5.13 on: the protocol says how many
transfers are complete; that many ACKs are popped from the head of this rank's own queue, each one's
own finish event is waited for, and only then its node is backed up (write) or its locks are
released (write, load). With storage on, a node that is backed up is written on to storage under a
host lock, which its backup ACK releases. A storage query that comes in is revoked: nothing is
fetched from storage here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from testbed.cache import KVCache, PrefetchOperation, TransferController
from testbed.protocols import Party, Protocol
from testbed.subjects.base import Map


@dataclass
class PendingWrite:
    """A write in flight. node_id: the locked node, which is the ACK id. publish: the nodes that
    become backed up by it, several after splits, upper part first.
    """

    node_id: int
    publish: list[int]


class MinimalSubject(Party):
    """One rank's minimal cache under one protocol; sidecars: every sidecar pool of the scenario."""

    def __init__(
        self,
        cache: KVCache,
        controller: TransferController | None,
        protocol: Protocol,
        storage: bool,
        sidecars: tuple[str, ...],
    ) -> None:
        self.controller = controller
        self.storage = storage
        self.sidecars = sidecars
        self.promises: dict[str, Any] = {"budget": protocol.name}
        if protocol.stage_local:
            self.promises["stage-local"] = True
        self._cache = cache
        self._protocol = protocol
        self._writes: dict[int, PendingWrite] = {}
        self._loads: dict[int, int] = {}
        self._backups: dict[int, int] = {}
        self._prefetches: dict[str, int] = {}

    def check_hicache_events(self) -> None:
        """One step of the protocol."""
        self._protocol.check(self)

    def drain_sends(self) -> None:
        """Wait for every outstanding send and forget them."""
        self._protocol.agreement.drain_sends()

    def outstanding_sends(self) -> int:
        """Sends not waited for yet."""
        return len(self._protocol.agreement.sends)

    # Remembering

    def track_write(self, node_id: int) -> None:
        """Lock the node until its write is complete."""
        self._cache.mark_write_through_pending(node_id)
        self._cache.inc_lock_ref(node_id)
        self._writes[node_id] = PendingWrite(node_id, [node_id])

    def track_load(self, node_id: int) -> None:
        """Lock the node on device and host until its load is complete."""
        self._cache.inc_host_lock_ref(node_id)
        self._cache.inc_lock_ref(node_id)
        self._loads[node_id] = node_id

    def track_prefetch(self, operation: PrefetchOperation) -> None:
        """Lock the query's anchor on host until the query is dealt with."""
        self._cache.inc_host_lock_ref(operation.node_id)
        self._prefetches[operation.request_id] = operation.node_id

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """Publish both parts of a node that was split while its write was in flight."""
        for pending in self._writes.values():
            if old_id in pending.publish:
                pending.publish.insert(pending.publish.index(old_id), new_prefix_id)

    def pending(self) -> dict[Map, list[int] | list[str]]:
        """Node ids of writes and loads, operation ids of backups, request ids of prefetches."""
        return {
            "write": list(self._writes),
            "load": list(self._loads),
            "backup": list(self._backups),
            "prefetch": list(self._prefetches),
        }

    # Completing: called by the protocol with agreed counts

    def writing_check(self, count: int) -> None:
        """Complete ``count`` writes. Raises IndexError if the queue holds fewer."""
        if self.controller is None:
            return
        for ack in _popped(self.controller.ack_write_queue, count):
            ack.finish_event.synchronize()
            for ack_id in ack.node_ids:
                self._finish_write(self.controller, ack_id)

    def loading_check(self, count: int) -> None:
        """Complete ``count`` loads. Raises IndexError if the queue holds fewer."""
        if self.controller is None:
            return
        for ack in _popped(self.controller.ack_load_queue, count):
            ack.finish_event.synchronize()
            for ack_id in ack.node_ids:
                node_id = self._loads.pop(ack_id)
                self._cache.dec_lock_ref(node_id)
                self._cache.dec_host_lock_ref(node_id)
                self._cache.finish_load_back(node_id)

    def drain_storage(self, counts: Sequence[int]) -> None:
        """Take that many prefetch hits, backup ACKs, host releases and sidecar releases; waits for
        ever for an item that is not there.
        """
        controller = self.controller
        if controller is None:
            return
        prefetches, backups, releases, *sidecars = counts
        for _ in range(prefetches):
            self._revoke(controller.prefetch_hit_queue.get())
        for _ in range(backups):
            node_id = self._backups.pop(controller.ack_backup_queue.get().id)
            self._cache.dec_host_lock_ref(node_id)
        _release(controller, None, releases)
        for pool, count in zip(self.sidecars, sidecars, strict=True):
            if pool in controller.extra_host_mem_release_queues:
                _release(controller, pool, count)

    def _finish_write(self, controller: TransferController, ack_id: int) -> None:
        pending = self._writes.pop(ack_id)
        self._cache.finish_write_through(pending.publish, ack_id)
        self._cache.dec_lock_ref(pending.node_id)
        if self.storage:
            for node_id in pending.publish:
                self._back_up(controller, node_id)

    def _back_up(self, controller: TransferController, node_id: int) -> None:
        node = self._cache.node(node_id)
        assert node.host_pages is not None, "its write has just been completed"
        tokens = controller.mem_pool_host.tokens_of(node.host_pages)
        operation_id = controller.write_storage(tokens, node.blocks, [node.key])
        self._cache.inc_host_lock_ref(node_id)
        self._backups[operation_id] = node_id

    def _revoke(self, operation: PrefetchOperation) -> None:
        node_id = self._prefetches.pop(operation.request_id, None)
        if node_id is not None:
            self._cache.dec_host_lock_ref(node_id)


def _popped(acks: list[Any], count: int) -> Any:
    # One at a time, so that what was complete before a queue ran dry has been completed.
    for _ in range(count):
        yield acks.pop(0)


def _release(controller: TransferController, pool: str | None, count: int) -> None:
    queues = controller.extra_host_mem_release_queues
    waiting = controller.host_mem_release_queue if pool is None else queues[pool]
    freed = [waiting.get() for _ in range(count)]
    if freed:
        controller.mem_pool_host.free(torch.cat(freed), pool=pool)
