"""A subject whose ranks agree from two more threads, each over a group of its own, as the storage
threads of SGLang's HiCache do beside its scheduler.
"""

import queue
import threading
from typing import Any

import torch
import torch.distributed as dist

from testbed.protocols import Batched
from testbed.subjects.minimal import MinimalSubject


class Threaded(MinimalSubject):
    """The minimal cache; in each step the main thread hands every other thread something to agree
    on, and does not wait for the answer. one_sided: a rank whose first thread leaves a reduction
    out.
    """

    one_sided: int | None = None

    def __init__(self, cache: Any, controller: Any, groups: Any, scenario: Any) -> None:
        super().__init__(cache, controller, Batched(groups), scenario.storage, ())
        self.promises = {}
        self._rank = groups.rank
        everybody = list(range(groups.topology.size))
        self._asked: list[queue.Queue[int | None]] = [queue.Queue() for _ in range(2)]
        self._threads = [
            threading.Thread(target=self._serve, args=(asked, dist.new_group(everybody)))
            for asked in self._asked
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def _serve(self, asked: "queue.Queue[int | None]", group: Any) -> None:
        first = asked is self._asked[0]
        while (value := asked.get()) is not None:
            if not (first and value == 3 and self._rank == self.one_sided):
                count = torch.tensor([value] if first else [value, self._rank])
                dist.all_reduce(count, op=dist.ReduceOp.MIN, group=group)

    def check_hicache_events(self) -> None:
        """One round, beside the sound check."""
        for asked in self._asked:
            asked.put(self._round)
        self._round += 1
        super().check_hicache_events()

    _round = 0

    def drain_sends(self) -> None:
        """The threads end before the rank does."""
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join()
        super().drain_sends()


class OneSided(Threaded):
    """Rank 1 leaves a reduction of its first thread out: its peers' thread waits for it at last."""

    one_sided = 1
