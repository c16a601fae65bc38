"""The storage threads of releases that tell the scheduler of fetched pages by ACKs, lifted.

The model, as the cache controller has it from 0.5.19 on:

- One thread (``prefetch_io_aux_func``) reads pages, one prefetch after the other, and makes an ACK
  of each batch and one of each prefetch's end, as many on every rank whatever went wrong there.
- Another (``prefetch_sync_thread_func``) reduces every ACK of pages with MIN over groups of its own
  in the stage and along the pipeline, and only then hands it to the scheduler.

Both functions are the source's own and run on threads of their own here too, over our pages and
queues. A batch is one page, so that the few pages of a scenario stand for many.

What time it is, the scheduler's steps say. The reading thread runs only while the rank's loop waits
for it, and stops where a page is not due yet. An ACK that is being reduced is handed over in the
step in which the rank that is last has its page: ranks tell each other through the rendezvous store
when their pages are due, and the loop waits for the reduction from that step on. It waits a quarter
of a second at most, once for a prefetch: a rank that never fetches it holds up its peers' storage
threads, not their schedulers. An ACK that the source does not reduce is handed over at once.
"""

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import Store  # where the type stubs have it
from torch.distributed.distributed_c10d import _get_default_store

from testbed.cache import PrefetchOperation, TransferController
from testbed.protocols import Groups
from testbed.subjects.sglang.lift import LiftedClass
from testbed.subjects.sglang.seams import Seams

READS, REDUCES = "prefetch_io_aux_func", "prefetch_sync_thread_func"
ROOTS = (READS, REDUCES)
BATCH_PAGES = 1
_PATIENCE = timedelta(seconds=0.25)
_GROUP_TIMEOUT = timedelta(minutes=30)


class StorageSeams(Seams):
    """What the two functions ask of the rest of the cache controller, given as attributes."""


def sync_groups(groups: Groups) -> list[dist.ProcessGroup]:
    """Groups that ACKs are reduced over: of the same ranks as the context-parallel group, the
    tensor-parallel group and the pipeline, each once, over gloo (``_create_sync_groups``). Every
    rank must call it, in the same order.
    """
    topology, rank = groups.topology, groups.rank
    specs = (topology.cp_group(rank), topology.tp_group(rank), topology.pp_group(rank))
    return [
        dist.new_group(
            list(ranks),
            timeout=_GROUP_TIMEOUT,
            backend="gloo",
            use_local_synchronization=True,
        )
        for ranks in dict.fromkeys(spec.ranks for spec in specs)
        if len(ranks) > 1
    ]


class ReducedFetch:
    """Fetches of one rank, by the lifted functions. reader: the controller's class cut down to
    them. over: see ``sync_groups``. Raises what a storage thread raised, in the rank's loop.
    """

    def __init__(
        self,
        reader: LiftedClass,
        told: tuple[str, str],
        controller: TransferController,
        groups: Groups,
        over: Sequence[dist.ProcessGroup],
    ) -> None:
        self._controller = controller
        self._dues = _Dues(groups)
        self._current: PrefetchOperation | None = None
        self._made = 0
        self._handed: deque[_Handed] = deque()
        self._come: deque[_Come] = deque()
        self._reducing = False
        self._came = threading.Condition()
        self._trouble: BaseException | None = None
        engine: Any = type(reader.cls.__name__, (StorageSeams, reader.cls), {})()
        engine._subject, engine._file = told
        engine.storage_stop_event = threading.Event()
        engine.page_size = controller.cache.sizes.page_tokens
        engine.prefetch_completion_sync_groups = _Noted(over, self._begin_reduction)
        engine.page_get_func = self._read
        reduces = REDUCES in reader.methods
        to_reduce: queue.Queue[Any] = queue.Queue()
        engine.prefetch_buffer = _Getting(self._next)
        engine.prefetch_sync_queue = _Between(self._hand, to_reduce)
        engine.ack_prefetch_queue = _Putting(self._pass_on if reduces else self._hand_over)
        self._reader = _Turns(getattr(engine, READS))
        if reduces:
            body = getattr(engine, REDUCES)
            threading.Thread(target=self._guarded, args=(body,), daemon=True).start()

    # In the rank's loop

    def advance(self) -> None:
        """Read what is due by now, and hand over the ACKs that every rank has by now."""
        self._reader.run()
        self._hand_over_due()

    def hasten(self) -> bool:
        """An ACK under way comes now; without one, the page that comes next does."""
        if self._handed and self._awaited(self._handed[0].operation):
            self._hand_over_next()
            return True
        if self._current is None and self._controller.prefetch_buffer.empty():
            return False
        event = None if self._current is None else self._controller.pages.coming(self._current)
        if event is not None and not event.observed:
            event.synchronize()
        self._reader.run()
        return True

    def stand_by(self) -> None:
        """Wait for the next ACK, however long its reduction takes."""
        with self._came:
            self._came.wait_for(self._has_come)
        self._hand_over_next()

    def unfinished(self) -> list[PrefetchOperation]:
        """What is being read, waits for that, or for the reduction of its ACKs."""
        current = [] if self._current is None else [self._current]
        handed = [each.operation for each in self._handed]
        return [*current, *self._controller.prefetch_buffer.queue, *handed]

    def _hand_over_due(self) -> None:
        while self._handed:
            operation, pages = self._handed[0]
            if self._is_reduced():
                if not operation.terminated:
                    due = self._dues.on_all(operation, pages)
                    if due is None and not self._has_come():
                        return
                    if due is not None and due > self._controller.now:
                        return
                if not self._awaited(operation):
                    return
            self._hand_over_next()

    def _is_reduced(self) -> bool:
        """Whether the source reduces the oldest ACK; False: it has come without."""
        with self._came:
            self._came.wait_for(lambda: self._has_come() or self._reducing)
            return self._come[0].reduced if self._come else True

    def _awaited(self, operation: PrefetchOperation) -> bool:
        """Whether the reduction of the oldest ACK is over, once it was waited for."""
        patience_s = 0 if operation.request_id in self._dues.late else _PATIENCE.total_seconds()
        with self._came:
            if not self._came.wait_for(self._has_come, patience_s):
                self._dues.late.add(operation.request_id)
                return False
        return True

    def _has_come(self) -> bool:
        if self._trouble is not None:
            raise self._trouble
        return bool(self._come)

    def _hand_over_next(self) -> None:
        self._handed.popleft()
        self._hand_over(self._come.popleft().ack)

    def _hand_over(self, ack: Any) -> None:
        self._controller.ack_prefetch_queue.put(ack, key=ack.rid)

    # In the thread that reads, while the loop waits for it

    def _next(self) -> PrefetchOperation:
        self._current, self._made = None, 0
        while self._controller.prefetch_buffer.empty():
            self._reader.rest()
        operation: PrefetchOperation = self._controller.prefetch_buffer.get()
        self._current = operation
        self._controller.pages.ask(operation)
        self._dues.tell(operation, self._controller.now)
        return operation

    def _read(self, operation: PrefetchOperation, hashes: Sequence[str], *_: Any) -> int:
        """Pages of the batch that have come; fewer than it has if the prefetch was terminated."""
        pages = self._controller.pages
        for read in range(len(hashes)):
            event = pages.coming(operation)
            while event is not None and not operation.terminated and not event.poll():
                self._reader.rest()
            if event is None or operation.terminated:
                return read
            pages.bring(operation)
        return len(hashes)

    def _hand(self, ack: Any) -> None:
        operation = ack.operation
        # One for each page, and one for the end.
        self._made = min(self._made + 1, len(operation.events))
        self._handed.append(_Handed(operation, self._made))

    # In the thread that reduces

    def _begin_reduction(self) -> None:
        with self._came:
            self._reducing = True
            self._came.notify()

    def _pass_on(self, ack: Any) -> None:
        with self._came:
            self._come.append(_Come(ack, self._reducing))
            self._reducing = False
            self._came.notify()

    def _guarded(self, body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 -- raised again in the rank's loop
            with self._came:
                self._trouble = error
                self._came.notify()


class _Handed(NamedTuple):
    """An ACK that was given to the thread that reduces; pages: of its prefetch, up to that one."""

    operation: PrefetchOperation
    pages: int


class _Come(NamedTuple):
    """An ACK that the thread that reduces has passed on; reduced: after a reduction."""

    ack: Any
    reduced: bool


class _Noted(list[dist.ProcessGroup]):
    """Groups; note is called whenever somebody goes through them, which is to reduce over each."""

    def __init__(self, groups: Iterable[dist.ProcessGroup], note: Callable[[], None]) -> None:
        super().__init__(groups)
        self._note = note

    def __iter__(self) -> Iterator[dist.ProcessGroup]:
        self._note()
        return super().__iter__()


class _Dues:
    """When the pages of prefetches are due on all ranks. late: requests for which waiting was in
    vain.
    """

    def __init__(self, groups: Groups) -> None:
        self._rank = groups.rank
        self._ranks = groups.topology.size
        self._told: dict[str, list[list[int]]] = {}
        self.late: set[str] = set()

    def tell(self, operation: PrefetchOperation, now: float) -> None:
        """Storage begins to read: tell the others in which step each page comes, if steps say."""
        after = operation.page_after
        pages = range(1, len(operation.events) + 1) if after.kind == "steps" else ()
        own = [int(now + after.times(page).after) for page in pages]
        if self._ranks == 1:
            self._told[operation.request_id] = [own]
        else:
            _get_default_store().set(_key(operation, self._rank), json.dumps(own))

    def on_all(self, operation: PrefetchOperation, pages: int) -> int | None:
        """The step from which on every rank has the first ``pages`` pages; None if not known."""
        request = operation.request_id
        if request not in self._told:
            store = _get_default_store()
            keys = [_key(operation, rank) for rank in range(self._ranks)]
            if not self._are_told(store, keys, request):
                return None
            self._told[request] = [json.loads(store.get(key)) for key in keys]
        told = self._told[request]
        return (
            max(due[pages - 1] for due in told) if all(len(due) >= pages for due in told) else None
        )

    def _are_told(self, store: Store, keys: list[str], request: str) -> bool:
        if request in self.late:
            return bool(store.check(keys))
        try:
            store.wait(keys, _PATIENCE)
        except RuntimeError:  # not every store of torch has a type of its own for a time-out
            self.late.add(request)
            return False
        return True


def _key(operation: PrefetchOperation, rank: int) -> str:
    return f"prefetch-due/{operation.request_id}/{rank}"


class _Turns:
    """A thread that runs only while another one waits for it."""

    def __init__(self, body: Callable[[], object]) -> None:
        self._body = body
        self._go = threading.Semaphore(0)
        self._rests = threading.Semaphore(0)
        self._trouble: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def run(self) -> None:
        """Have it run until it rests. Raises what it raised."""
        if self._trouble is None:
            self._go.release()
            self._rests.acquire()
        if self._trouble is not None:
            raise self._trouble

    def rest(self) -> None:
        """On the thread: it can do no more in this step."""
        self._rests.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 -- raised again by ``run``
            self._trouble = error
        self._rests.release()


class _Getting:
    """A queue's end that is read. The time a reader would wait is not up to it here."""

    def __init__(self, next_item: Callable[[], Any]) -> None:
        self._next_item = next_item

    def get(self, *_: Any, **__: Any) -> Any:
        """The next item, whenever it comes."""
        return self._next_item()


class _Putting:
    """A queue's end that is written."""

    def __init__(self, put: Callable[[Any], object]) -> None:
        self._put = put

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        """One more item."""
        self._put(item)


class _Between(_Getting):
    """A queue from the thread that reads to the one that reduces."""

    def __init__(self, note: Callable[[Any], object], items: "queue.Queue[Any]") -> None:
        super().__init__(items.get)
        self._note = note
        self._items = items

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        """Note the item, and pass it on."""
        self._note(item)
        self._items.put(item)
