"""TransferController: moves pages between the pools and keeps the queues that a subject polls.

Its attribute names are those of SGLang's cache controller (releases 0.5.18 to 0.5.23), so that code
lifted from there runs over it: ``ack_write_queue`` and ``ack_load_queue`` are lists, head first;
the storage control queues are ``queue.Queue``s; ``mem_pool_host`` speaks in tokens.
"""

import queue
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from testbed.cache.fetch import Fetch, Pages, PlainFetch
from testbed.cache.kv import KVCache, Transfer
from testbed.cache.pools import HostPools, PagePool
from testbed.cache.prefetch import PrefetchKey, PrefetchOperation
from testbed.cache.tree import Node
from testbed.model.events import Block, Start, Sync, Synced, Take
from testbed.recorder.recorder import HasStep, Recorder
from testbed.scripted_events import Readiness, ScriptedEvent, block_for_ever

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
    """A storage control queue that one thread of the rank takes from. Records every item taken, and
    a wait for an item that nobody on this rank is about to put: that wait truly blocks.

    hasten: has storage bring what it is about to, as time would while the rank waits; returns
    whether there was anything under way. stand_by: waits, once there is not, until something was
    put after all.
    """

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        hasten: Callable[[], bool] = lambda: False,
        stand_by: Callable[[], object] = lambda: block_for_ever(),
    ) -> None:
        super().__init__()
        self.name = name
        self._recorder = recorder
        self._hasten = hasten
        self._stand_by = stand_by
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
        long, else records Block and returns when there is one, if ever."""
        if self.empty():
            if not block or timeout is not None:
                raise queue.Empty
            while self.empty() and self._hasten():
                pass
        if self.empty():
            self._recorder.add(Block, self.name)
            while self.empty():
                self._stand_by()
        taken: _Keyed = super().get(block=False)
        self._recorder.add(Take, self.name, taken.key)
        return taken.item

    def get_nowait(self) -> Any:
        """The oldest item. Raises queue.Empty."""
        return self.get(block=False)

    def contents(self) -> list[Any]:
        """The items, oldest first, silently."""
        return [held.item for held in list(self.queue)]


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


class LoadDone(NamedTuple):
    """What is held of one load for whoever waits for it."""

    finish_event: ScriptedEvent


class LayerDone(NamedTuple):
    """Loads in the order in which they were begun, as SGLang's counter of loaded layers holds them.

    places: a load's key -> its place among ``events``, which is its consumer index.
    """

    places: dict[str, int]
    events: list[LoadDone]

    def add(self, key: str, event: ScriptedEvent) -> None:
        """One more load."""
        self.places[key] = len(self.events)
        self.events.append(LoadDone(event))

    def consumer_index(self, key: str) -> int:
        """The place of a load; -1, as for a request without one, where it was not begun."""
        return self.places.get(key, -1)


Gate = Callable[[str, str], bool]
"""(queue, key) -> whether the transfer is refused, as after a failed allocation."""
Reshape = Callable[[str, str, Readiness], Readiness]
"""(queue, key, readiness) -> the readiness it really gets."""


class TransferController:
    """The transfers of one rank.

    gates / reshapes: hooks for faults. make_ack: builds an ACK from keyword arguments start_event,
    finish_event, node_ids, num_tokens; a subject may plug in its own. backup_after: steps from
    ``write_storage`` to its ACK. revokes: a storage query that found too little comes back as a
    request id in ``prefetch_revoke_queue``, as up to SGLang 0.5.17, not with the hits.
    allocates_first: host pages of a prefetch are allocated before storage is asked, as up to
    0.5.15. fetch: what reads from storage; a subject may plug in its own.
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
        self.revokes = False
        self.allocates_first = False
        self.gates: list[Gate] = []
        self.reshapes: list[Reshape] = []
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []
        self.prefetch_hit_queue = RecordedQueue("prefetch", recorder)
        self.prefetch_revoke_queue = RecordedQueue("revoke", recorder)
        self.ack_prefetch_queue = RecordedQueue(
            "prefetch-ack",
            recorder,
            lambda: self.fetch.hasten(),  # whichever a subject has plugged in by then
            lambda: self.fetch.stand_by(),
        )
        self.ack_backup_queue = RecordedQueue("backup", recorder, self._hasten_backup)
        self.host_mem_release_queue = RecordedQueue("release", recorder)
        self.extra_host_mem_release_queues = {
            name: RecordedQueue(f"sidecar:{name}", recorder) for name in sidecars
        }
        self.prefetch_buffer: queue.Queue[Any] = queue.Queue()
        self.prefetch_tokens_occupied = 0
        self.prefetches: dict[str, PrefetchOperation] = {}
        self.pp_prefetch_decisions: dict[str, Any] = {}
        self.layer_done_counter = LayerDone({}, [])
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
        self.pages = Pages(cache, clock, recorder)
        self.fetch: Fetch = PlainFetch(
            self.pages, self.prefetch_buffer, self.append_host_mem_release
        )

    @property
    def now(self) -> float:
        """The time, a second a scheduler step."""
        return float(self._clock.step)

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
        if name == "load":
            self.layer_done_counter.add(key, finish)
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
        self.fetch.advance()

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
            *([self.prefetch_revoke_queue] if self.revokes else []),
            self.ack_prefetch_queue,
            self.ack_backup_queue,
            self.host_mem_release_queue,
            *self.extra_host_mem_release_queues.values(),
        )
        return {each.name: each for each in waiting}

    # Prefetches

    def begin_prefetch(
        self,
        node: Node,
        key: str,
        blocks: Sequence[int] = (0,),
        found: int = 0,
        page_after: Readiness | None = None,
    ) -> PrefetchOperation | None:
        """Ask storage for the pages of ``blocks`` that follow ``node``, for a request named
        ``key``; records Start. None, and nothing asked, where host pages come first and there is no
        room for them. found: how many of them storage has. page_after: readiness of each page after
        the one before it (default: a step).

        The caller must host-lock the node (``Subject.track_prefetch``) and then have storage answer
        (``answer_prefetch``).
        """
        page = self.cache.sizes.page_tokens
        indices = None
        if self.allocates_first:
            # Not at the cost of the node that they are to follow.
            self.cache.inc_host_lock_ref(node.id)
            indices = self._host_tokens(len(blocks) * page, self._evict_host)
            self.cache.dec_host_lock_ref(node.id)
            if indices is None:
                return None
        readiness = self._reshaped("prefetch", key, page_after or Readiness.steps(1))
        operation = PrefetchOperation(
            self.next_operation_id(),
            key,
            node.id,
            PrefetchKey(key, tuple(blocks), page),
            found_tokens=found * page,
            page_after=readiness,
            start_time=self.now,
            host_indices=indices,
            stats_requested_tokens=len(blocks) * page,
        )
        self.prefetches[key] = operation
        self._recorder.add(Start, "prefetch", key, readiness.kind)
        return operation

    def answer_prefetch(self, operation: PrefetchOperation) -> None:
        """Storage has looked: the answer waits for the next drain, among the hits or, less than a
        page, among what is to be revoked where there is such a queue. Pages that were allocated
        already are on their way at once.
        """
        found, page = operation.found_tokens, self.cache.sizes.page_tokens
        operation.storage_hit_count = found
        operation.hash_value = [f"{operation.request_id}.{at}" for at in range(found // page)]
        if self.revokes and found < page:
            self.append_host_mem_release(operation.host_indices)
            operation.revoked = True
            self.prefetch_revoke_queue.put(operation.request_id, key=operation.request_id)
        elif operation.host_indices is not None:
            self.append_host_mem_release(operation.host_indices[found:])
            operation.host_indices = operation.host_indices[:found]
            self.prefetch_buffer.put(operation)
        else:
            self.prefetch_hit_queue.put(operation, key=operation.request_id)

    def terminate_prefetch(self, operation: PrefetchOperation) -> tuple[int, list[str]]:
        """No more pages are wanted; returns (tokens completed, a hash for each page found)."""
        operation.mark_terminate()
        return operation.completed_tokens, operation.hash_value

    def allocate_storage_hit(
        self,
        operation: PrefetchOperation,
        hit_tokens: int,
        *,
        allow_partial: bool,
        min_tokens: int,
        evict_host: Callable[[int], int],
    ) -> tuple[torch.Tensor | None, int]:
        """Host pages for what storage has: (token indices, how many tokens), or (None, tokens
        wanted) if there is no room. As releases from 0.5.22 on ask for it.
        """
        page = self.cache.sizes.page_tokens
        indices = self._host_tokens(hit_tokens, evict_host)
        room = self.mem_pool_host.available_size() // page * page
        if indices is None and allow_partial and room >= min_tokens:
            indices = self.mem_pool_host.alloc(min(hit_tokens, room))
        return indices, hit_tokens if indices is None else len(indices)

    def _host_tokens(self, tokens: int, evict_host: Callable[[int], int]) -> torch.Tensor | None:
        indices = self.mem_pool_host.alloc(tokens)
        if indices is None:
            evict_host(tokens)
            indices = self.mem_pool_host.alloc(tokens)
        return indices

    def _evict_host(self, tokens: int) -> int:
        return self.cache.evict_host(-(-tokens // self.cache.sizes.page_tokens))

    def wait_prefetch(self, operation: PrefetchOperation, tokens: int) -> None:
        """Wait until that many tokens of a prefetch have arrived, and whatever comes before them,
        each page for its own event."""
        while operation.completed_tokens < tokens and self.fetch.hasten():
            pass

    def prefetch_rate_limited(self) -> bool:
        """Never: a scenario says how much is asked for."""
        return False

    def held_by_prefetches(self, pending: Collection[str]) -> int:
        """Host pages allocated for prefetches and not handed over yet: all those of the requests
        that are pending, and of others what had not arrived when they were terminated, until
        storage has noticed.
        """
        waiting = [ack.operation for ack in self.ack_prefetch_queue.contents()]
        open_ends = [*self.fetch.unfinished(), *waiting]
        page = self.cache.sizes.page_tokens
        held = 0
        for operation in self.prefetches.values():
            allocated = 0 if operation.host_indices is None else len(operation.host_indices)
            if operation.request_id in pending and not operation.revoked:
                held += allocated // page
            elif any(operation is one for one in open_ends):
                held += (allocated - operation.completed_tokens) // page
        return held

    def _hasten_backup(self) -> bool:
        """The backup that is due next is handed in now: the rank waits for it."""
        due = [backup for backup in self._backups if backup.due_step is not None]
        if not due:
            return False
        backup = min(due, key=lambda one: (one.due_step or 0, one.id))
        self._recorder.add(Sync, backup.key, (backup.due_step or 0) - self._clock.step)
        self._recorder.add(Synced, backup.key)
        self._backups.remove(backup)
        self.ack_backup_queue.put(backup, key=backup.key)
        return True

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
            "total": sum(pool.size for pool in pools),
            "free": sum(pool.room for pool in pools),
            "flight": sum(-(-len(item) // page) for item in waiting),
        }
