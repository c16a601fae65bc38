"""The minimal cache with one of the protocols: what a sound implementation does, and no more.

The model of a step, as in SGLang's ``UnifiedRadixCache`` from 0.5.13 on: the protocol says how many
transfers are complete; that many ACKs are popped from the head of this rank's own queue, each one's
own finish event is waited for, and only then its node is backed up (write) or its locks are
released (write, load). With storage on, a node that is backed up is written on to storage under a
host lock, which its backup ACK releases. A storage query that found less than a page is revoked,
of any other the pages are fetched; what has arrived when a prefetch is stopped goes into the tree.

Whatever else the loop may call is agreed on as the counts are: the MIN of the leader stage rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from testbed.cache import KVCache, PrefetchOperation, TransferController
from testbed.model.scenario import PrefetchStop
from testbed.protocols import Party, Protocol, count_ready
from testbed.protocols.agreement import check_storage
from testbed.subjects.base import Calls, Map


@dataclass
class PendingWrite:
    """A write in flight. node_id: the locked node, which is the ACK id. publish: the nodes that
    become backed up by it, several after splits, upper part first.
    """

    node_id: int
    publish: list[int]


class MinimalSubject(Party):
    """One rank's minimal cache under one protocol; sidecars: every sidecar pool of the scenario.

    stop: when prefetch checks stop a prefetch.
    """

    stop = PrefetchStop()

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
        self.promises: dict[str, Any] = {"budget": protocol.name, "same-site": True}
        if protocol.stage_local:
            self.promises["stage-local"] = True
        self._cache = cache
        self._protocol = protocol
        self._writes: dict[int, PendingWrite] = {}
        self._loads: dict[int, int] = {}
        self._backups: dict[int, int] = {}
        self._prefetches: dict[str, PrefetchOperation] = {}

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
        self._prefetches[operation.request_id] = operation

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
            self._answered(controller, controller.prefetch_hit_queue.get())
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

    def _answered(self, controller: TransferController, operation: PrefetchOperation) -> None:
        found, page = operation.storage_hit_count, self._cache.sizes.page_tokens
        wanted = operation.request_id in self._prefetches and found >= page
        operation.host_indices = controller.mem_pool_host.alloc(found) if wanted else None
        if operation.host_indices is None:
            self._forget(operation)
        else:
            controller.prefetch_buffer.put(operation)

    def _forget(self, operation: PrefetchOperation) -> None:
        if self._prefetches.pop(operation.request_id, None) is not None:
            self._cache.dec_host_lock_ref(operation.node_id)

    # Besides the check: called by the loop where a scenario says so

    @property
    def calls(self) -> Calls:
        """All of them."""
        return {
            "flush": self.flush_write_through_acks,
            "write-back": self.write_back,
            "storage-drain": self.drain_storage_control_queues,
            "prefetch-check": self.check_prefetch_progress,
            "load-back-poll": self.is_load_back_done,
        }

    def flush_write_through_acks(self, _: str = "") -> None:
        """Agree on the writes that are ready by now, and complete them."""
        leads = self._protocol.agreement.groups.leads
        acks = self.controller.ack_write_queue if self.controller and leads else []
        (writes,) = self._agreed(count_ready(acks))
        self.writing_check(writes)

    def write_back(self, _: str = "") -> None:
        """Complete every write pending here, each as soon as it is ready. Asks no other rank."""
        if self.controller is not None:
            self.writing_check(len(self.controller.ack_write_queue))

    def drain_storage_control_queues(self, _: str = "") -> None:
        """Agree inside the stage on the storage queues, and drain them."""
        check_storage(self._protocol.agreement, self)

    def check_prefetch_progress(self, request: str) -> bool:
        """Whether the prefetch of a request is over: then what the leader stage has of it on every
        rank is in the tree. A rank that knows of none takes part and has nothing.
        """
        operation = self._prefetches.get(request)
        arrived = 0 if operation is None else operation.completed_tokens
        over, tokens = self._agreed(int(self._may_stop(operation)), arrived)
        if over and operation is not None and self.controller is not None:
            self._stop(self.controller, operation, tokens)
        return bool(over)

    def is_load_back_done(self, load: str) -> bool:
        """Whether a load is ready on every rank of the leader stage; done where there is none."""
        here = [
            ack.finish_event.query()
            for ack in (self.controller.ack_load_queue if self.controller else [])
            if ack.finish_event.key == load
        ]
        (everywhere,) = self._agreed(int(all(here)))
        return bool(everywhere)

    def _agreed(self, *numbers: int) -> list[int]:
        # A protocol that sends nothing in its own round never drains.
        self._protocol.agreement.drain_sends()
        return self._protocol.agreement.agree(torch.tensor(numbers, dtype=torch.int32))

    def _may_stop(self, operation: PrefetchOperation | None) -> bool:
        if operation is None or self.controller is None or self.stop.policy == "best_effort":
            return True
        found = operation.storage_hit_count
        if operation.host_indices is not None and operation.completed_tokens == found:
            return True
        waited = self.controller.now - operation.start_time
        return self.stop.policy == "timeout" and waited > self.stop.timeout_steps

    def _stop(
        self, controller: TransferController, operation: PrefetchOperation, tokens: int
    ) -> None:
        indices = operation.host_indices
        if indices is not None:
            # A follower may be told of pages that it has to wait for.
            controller.wait_prefetch(operation, tokens)
        controller.terminate_prefetch(operation)
        if indices is not None:
            controller.append_host_mem_release(indices[tokens : operation.completed_tokens])
            _into_tree(self._cache, controller, operation, indices[:tokens])
        self._forget(operation)


def _into_tree(
    cache: KVCache,
    controller: TransferController,
    operation: PrefetchOperation,
    indices: torch.Tensor,
) -> None:
    page = cache.sizes.page_tokens
    blocks = operation.prefetch_key[: len(indices)].blocks
    if blocks:
        anchor, pages = cache.node(operation.node_id), indices[::page] // page
        refused = cache.insert_on_host(anchor, blocks, pages, operation.request_id)
        controller.mem_pool_host.free(indices[: refused * page])


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
