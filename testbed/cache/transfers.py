"""TransferController: moves pages between the pools and keeps the queues that a subject polls.

Its attribute names are those of SGLang's cache controller (releases 0.5.18 to 0.5.23), so that code
lifted from there runs over it: ``ack_write_queue`` and ``ack_load_queue`` are lists, head first;
the storage control queues are ``queue.Queue``s; ``mem_pool_host`` speaks in tokens.
"""

import queue
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from testbed.cache.kv import KVCache, Transfer
from testbed.cache.pools import HostPools, PagePool
from testbed.cache.tree import Node
from testbed.events import Readiness, ScriptedEvent, block_for_ever
from testbed.trace.events import Block, Start, Take
from testbed.trace.recorder import HasStep, Recorder

# A subject asks no event of this one; it is recorded nowhere.
_START_EVENT = ""


class Ack(NamedTuple):
    """One transfer in an ACK queue. node_ids: the ACK id, which is the node's id."""

    start_event: ScriptedEvent
    finish_event: ScriptedEvent
    node_ids: list[int]
    num_tokens: int = 0


class _Keyed(NamedTuple):
    key: str
    item: Any


class RecordedQueue(queue.Queue[Any]):
    """A storage control queue of one single-threaded rank. Records every item taken, and a wait for
    an item that nobody will ever put: that wait truly blocks."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__()
        self.name = name
        self._recorder = recorder
        self._unnamed = 0

    def put(
        self, item: Any, block: bool = True, timeout: float | None = None, *, key: str = ""
    ) -> None:
        """Append an item under ``key``; without one, it gets the next number of this queue."""
        if not key:
            self._unnamed += 1
            key = f"{self.name}{self._unnamed}"
        super().put(_Keyed(key, item), block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The oldest item. Records Take. Empty: raises queue.Empty if told not to wait or for how
        long, else records Block and never returns."""
        if self.empty():
            if not block or timeout is not None:
                raise queue.Empty
            self._recorder.add(Block, self.name)
            block_for_ever()
        taken: _Keyed = super().get(block=False)
        self._recorder.add(Take, self.name, taken.key)
        return taken.item

    def get_nowait(self) -> Any:
        """The oldest item. Raises queue.Empty."""
        return self.get(block=False)

    def contents(self) -> list[Any]:
        """The items, oldest first, silently."""
        return [held.item for held in list(self.queue)]


class StorageRequest(NamedTuple):
    """Who asked for a prefetch, as later releases hold it in ``operation.handle``."""

    rid: str


@dataclass(eq=False)
class PrefetchOperation:
    """A storage query for the pages that follow a node. ``node_id``: its anchor, host-locked while
    the prefetch is pending. storage_hit_count: tokens found. Field names as in SGLang."""

    id: int
    request_id: str
    node_id: int
    prefetch_key: tuple[int, ...]
    storage_hit_count: int = 0
    completed_tokens: int = 0
    hash_value: list[str] = field(default_factory=list)
    all_hash_values: list[str] | None = None
    host_indices: torch.Tensor | None = None
    pool_transfers: list[Any] | None = None
    deadline_expired: bool = False
    stats_requested_tokens: int = 0
    stats_total_tokens: int = 0
    storage_start: int = 0

    @property
    def handle(self) -> StorageRequest:
        """The request, as releases from 0.5.20 on name it."""
        return StorageRequest(self.request_id)

    def is_terminated(self) -> bool:
        """Scripted requests are never aborted."""
        return False


@dataclass(eq=False)
class BackupOperation:
    """Host pages on their way to storage; in ``ack_backup_queue`` once they are there. node_key: of
    the node they belong to. completed_tokens: as SGLang counts them."""

    id: int
    key: str
    node_key: str
    due_step: int | None
    host_indices: torch.Tensor
    completed_tokens: int


Gate = Callable[[str, str], bool]
"""(queue, key) -> whether the transfer is refused, as after a failed allocation."""
Reshape = Callable[[str, str, Readiness], Readiness]
"""(queue, key, readiness) -> the readiness it really gets."""


class TransferController:
    """The transfers of one rank.

    gates / reshapes: hooks for faults. make_ack: builds an ACK from keyword arguments start_event,
    finish_event, node_ids, num_tokens; a subject may plug in its own. backup_after: steps from
    ``write_storage`` to its ACK.
    """

    def __init__(
        self,
        cache: KVCache,
        clock: HasStep,
        recorder: Recorder,
        sidecars: Sequence[str] = (),
        backup_after: int = 1,
    ) -> None:
        sizes = cache.sizes
        self.cache = cache
        self.make_ack: Callable[..., Any] = Ack
        self.backup_after = backup_after
        self.gates: list[Gate] = []
        self.reshapes: list[Reshape] = []
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []
        self.prefetch_hit_queue = RecordedQueue("prefetch", recorder)
        self.ack_prefetch_queue = RecordedQueue("prefetch-ack", recorder)
        self.ack_backup_queue = RecordedQueue("backup", recorder)
        self.host_mem_release_queue = RecordedQueue("release", recorder)
        self.extra_host_mem_release_queues = {
            name: RecordedQueue(f"sidecar:{name}", recorder) for name in sidecars
        }
        self.prefetch_buffer: queue.Queue[Any] = queue.Queue()
        self.prefetch_tokens_occupied = 0
        self.prefetches: dict[str, PrefetchOperation] = {}
        self.mem_pool_host = HostPools(
            cache.host,
            {
                name: PagePool(
                    sizes.host_pages, cache.shard, sizes.head_dim, cache.hardware.host_zeros
                )
                for name in sidecars
            },
            sizes.page_tokens,
        )
        self._clock = clock
        self._recorder = recorder
        self._in_flight: list[Transfer] = []
        self._backups: list[BackupOperation] = []
        self._keys: Counter[tuple[str, str]] = Counter()
        self._last_operation_id = 0

    # Transfers between the pools

    def write(self, node: Node, key: str, readiness: Readiness) -> bool:
        """Start the node's write to host; records Start. False if it is refused or there is no
        room.

        The caller must lock the node until the write is complete (``Subject.track_write``).
        """
        return self._start("write", node, key, readiness, self.cache.begin_write)

    def load(self, node: Node, key: str, readiness: Readiness) -> bool:
        """Start loading the node, and its ancestors that are on host only, back to device; records
        Start. False if it is refused or there is no room. One ACK for all of them, under this
        node's id.

        The caller must lock the node on device and on host (``Subject.track_load``).
        """
        return self._start("load", node, key, readiness, self.cache.begin_load)

    def _start(
        self,
        name: str,
        node: Node,
        key: str,
        readiness: Readiness,
        begin: Callable[[Node, str, ScriptedEvent], Transfer | None],
    ) -> bool:
        if any(gate(name, key) for gate in self.gates):
            return False
        readiness = self._reshaped(name, key, readiness)
        hardware = self.cache.hardware
        start = hardware.event(self._clock, self._recorder, _START_EVENT, Readiness.steps(0))
        finish = hardware.event(self._clock, self._recorder, key, readiness)
        transfer = begin(node, key, finish)
        if transfer is None:
            return False
        hardware.launch(start, finish, partial(self.cache.move, transfer))
        if not finish.poll():  # one that takes no time at all has arrived, whether asked or not
            self._in_flight.append(transfer)
        acks = self.ack_write_queue if name == "write" else self.ack_load_queue
        tokens = len(transfer.blocks) * self.cache.sizes.page_tokens
        acks.append(
            self.make_ack(
                start_event=start, finish_event=finish, node_ids=[node.id], num_tokens=tokens
            )
        )
        self._recorder.add(Start, name, key, finish.script)
        return True

    def _reshaped(self, name: str, key: str, readiness: Readiness) -> Readiness:
        for reshape in self.reshapes:
            readiness = reshape(name, key, readiness)
        return readiness

    def start_writing(self) -> None:
        """Submit queued writes; there are none here, a write starts at once."""

    def unique_key(self, name: str, key: str) -> str:
        """``key``, or ``key.2`` and so on if a transfer of that queue bore it before."""
        self._keys[name, key] += 1
        count = self._keys[name, key]
        return key if count == 1 else f"{key}.{count}"

    def progress(self) -> None:
        """What the device and the storage do by themselves: move the bytes of transfers that are
        ready, and hand in the backup ACKs that are due."""
        self._in_flight = [
            transfer for transfer in self._in_flight if not transfer.finish_event.poll()
        ]
        waiting = []
        for backup in self._backups:
            if backup.due_step is not None and backup.due_step <= self._clock.step:
                self.ack_backup_queue.put(backup, key=backup.key)
            else:
                waiting.append(backup)
        self._backups = waiting

    # Storage

    def write_storage(
        self,
        host_indices: torch.Tensor,
        token_ids: Sequence[int],
        hash_value: Sequence[str] | None = None,
        prefix_keys: Sequence[str] | None = None,
        extra_pools: Sequence[Any] | None = None,
    ) -> int:
        """Back host pages up to storage; returns the operation's id, which is its ACK's too. Its
        key is the last of ``hash_value``, so give one that is the same on every rank."""
        node_key = hash_value[-1] if hash_value else "storage"
        key = self.unique_key("backup", node_key)
        readiness = self._reshaped("backup", key, Readiness.steps(self.backup_after))
        due = self._clock.step + int(readiness.after) if readiness.kind == "steps" else None
        tokens = len(host_indices)
        operation = BackupOperation(
            self.next_operation_id(), key, node_key, due, host_indices, tokens
        )
        self._backups.append(operation)
        return operation.id

    def append_host_mem_release(
        self,
        host_indices: torch.Tensor | None = None,
        extra_pools: Sequence[Any] | None = None,
    ) -> None:
        """Queue host pages (token indices) to be freed at the next drain, an item per page;
        ``extra_pools``: sidecar transfers with ``name`` and ``host_indices``."""
        releases: list[tuple[RecordedQueue | None, torch.Tensor | None]] = [
            (self.host_mem_release_queue, host_indices)
        ]
        for pool in extra_pools or ():
            releases.append((self.extra_host_mem_release_queues.get(pool.name), pool.host_indices))
        for waiting, indices in releases:
            if waiting is None or indices is None or indices.numel() == 0:
                continue
            for at in range(0, len(indices), self.cache.sizes.page_tokens):
                waiting.put(indices[at : at + self.cache.sizes.page_tokens])

    def next_operation_id(self) -> int:
        """A number for a storage operation, from 1 on."""
        self._last_operation_id += 1
        return self._last_operation_id

    def storage_queues(self) -> dict[str, RecordedQueue]:
        """The storage control queues by name."""
        waiting = (
            self.prefetch_hit_queue,
            self.ack_prefetch_queue,
            self.ack_backup_queue,
            self.host_mem_release_queue,
            *self.extra_host_mem_release_queues.values(),
        )
        return {each.name: each for each in waiting}

    def begin_prefetch(self, node: Node, key: str) -> PrefetchOperation:
        """Ask storage for the page that follows ``node``, for a request named ``key``.

        The caller must host-lock the node (``Subject.track_prefetch``)."""
        tokens = self.cache.sizes.page_tokens
        operation = PrefetchOperation(self.next_operation_id(), key, node.id, (0,) * tokens)
        self.prefetches[key] = operation
        self.prefetch_tokens_occupied += tokens
        return operation

    def answer_prefetch(self, operation: PrefetchOperation, found_tokens: int) -> None:
        """Storage has looked: the answer waits in ``prefetch_hit_queue`` for the next drain."""
        operation.storage_hit_count = found_tokens
        self.prefetch_hit_queue.put(operation, key=operation.request_id)

    def backups(self) -> dict[int, BackupOperation]:
        """Backups whose ACK has not been taken yet, by operation id."""
        waiting: list[BackupOperation] = self.ack_backup_queue.contents()
        return {backup.id: backup for backup in [*self._backups, *waiting]}

    def host_books(self) -> dict[str, int]:
        """What sidecar pools and release queues add to the host pool's books, in pages: {"total",
        "free", "flight"}. flight: pages in a release queue."""
        page = self.cache.sizes.page_tokens
        pools = [entry.host_pool.pages for entry in self.mem_pool_host.entry_map.values()]
        queues: Iterable[RecordedQueue] = (
            self.host_mem_release_queue,
            *self.extra_host_mem_release_queues.values(),
        )
        waiting = [item for each in queues for item in each.contents()]
        return {
            "total": sum(pool.total for pool in pools),
            "free": sum(pool.free_pages for pool in pools),
            "flight": sum(-(-len(item) // page) for item in waiting),
        }
