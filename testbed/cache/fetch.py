"""How the pages of prefetches come from storage: one prefetch after the other, page after page.

The model, as every release has it: one thread of the cache controller reads from storage. It takes
the oldest prefetch that has host pages and reads its pages in order, each with an event of its own;
the next prefetch begins when this one is over or was told to end. Pages under way then never come.
"""

import queue
from collections.abc import Callable
from typing import Any, Protocol

import torch

from testbed.cache.kv import KVCache
from testbed.cache.prefetch import PrefetchOperation
from testbed.model.events import Arrived
from testbed.recorder.recorder import HasStep, Recorder
from testbed.scripted_events import FakeEvent, block_for_ever


class Pages:
    """What storage sends to one rank's host pool."""

    def __init__(self, cache: KVCache, clock: HasStep, recorder: Recorder) -> None:
        self._cache = cache
        self._clock = clock
        self._recorder = recorder

    def ask(self, operation: PrefetchOperation) -> None:
        """Storage begins to read the pages of a prefetch, for which there are host pages."""
        assert operation.host_indices is not None
        for at in range(len(operation.host_indices) // self._cache.sizes.page_tokens):
            after = operation.page_after.times(at + 1)
            # Storage is no device: its pages come as scripted, whatever the pools are.
            event = FakeEvent(self._clock, self._recorder, operation.request_id, after)
            event.record()
            operation.events.append(event)

    def coming(self, operation: PrefetchOperation) -> FakeEvent | None:
        """The event of the page that comes next; None if all have come."""
        come = operation.arrived_tokens // self._cache.sizes.page_tokens
        return operation.events[come] if come < len(operation.events) else None

    def bring(self, operation: PrefetchOperation) -> None:
        """That page is in the host pool. Records Arrived with the last one."""
        page, tokens = operation.arrived_tokens, self._cache.sizes.page_tokens
        assert operation.host_indices is not None
        at = (operation.host_indices[page] // tokens).reshape(1)
        block = operation.prefetch_key.blocks[page // tokens]
        self._cache.host.write(at, self._cache.contents.of([block]))
        operation.arrived_tokens += tokens
        if self.coming(operation) is None:
            self._recorder.add(Arrived, operation.request_id)


class Fetch(Protocol):
    """What reads from storage on one rank."""

    def advance(self) -> None:
        """A scheduler step begins: what storage has done since the last one."""

    def hasten(self) -> bool:
        """The rank waits for storage: what comes next comes now. False if nothing is under way."""

    def stand_by(self) -> None:
        """Nothing is under way and the rank waits: return when something has come, if ever."""

    def unfinished(self) -> list[PrefetchOperation]:
        """Prefetches whose end the subject has not been told."""


class PlainFetch:
    """Pages that have arrived are told on the operation at once; what did not arrive is released
    when the operation is over. So it is up to SGLang 0.5.18.
    """

    def __init__(
        self,
        pages: Pages,
        waiting: "queue.Queue[Any]",
        release: Callable[[torch.Tensor], None],
    ) -> None:
        self._pages = pages
        self._waiting = waiting
        self._release = release
        self._current: PrefetchOperation | None = None

    def advance(self) -> None:
        """Bring the pages that have come by now."""
        while (operation := self._taken()) is not None:
            while not operation.terminated:
                event = self._pages.coming(operation)
                if event is None:
                    break
                if not event.poll():
                    return
                self._pages.bring(operation)
                operation.completed_tokens = operation.arrived_tokens
            assert operation.host_indices is not None
            self._release(operation.host_indices[operation.completed_tokens :])
            self._current = None

    def hasten(self) -> bool:
        """The page that comes next comes now."""
        operation = self._taken()
        if operation is None:
            return False
        event = self._pages.coming(operation)
        if event is not None and not operation.terminated and not event.observed:
            event.synchronize()
        self.advance()
        return True

    def stand_by(self) -> None:
        """Nothing will come."""
        block_for_ever()

    def unfinished(self) -> list[PrefetchOperation]:
        """The one under way and those behind it."""
        current = [] if self._current is None else [self._current]
        return [*current, *self._waiting.queue]

    def _taken(self) -> PrefetchOperation | None:
        if self._current is None and not self._waiting.empty():
            self._current = self._waiting.get()
            self._pages.ask(self._current)
        return self._current
