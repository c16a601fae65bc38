"""Pools of pages: real memory, handed out by index; and the host pools in SGLang's own terms
(tokens)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from testbed.cache.contents import Shard
from testbed.device import CPU

# What a freed page holds: no block's contents, so that a read after a free is seen to be wrong.
_FREED = -1


Refusal = Callable[[int], bool]
"""Pages asked for -> whether the allocation fails, whatever room there is."""


class PagePool:
    """``pages`` pages, int32 of shape (layers_local, pages, heads_local, head_dim), in memory that
    ``zeros`` makes. Whatever goes in or comes out, indices included, is on the CPU.

    withheld: pages that are not to be had, for faults; if more are in use than are left, fewer than
    none are free. refusals / looks: hooks for faults, asked of every allocation before anything is
    evicted for it, and called whenever somebody asks how many pages there are or are free.

    Hands out the page freed last first, so that a page freed too early is soon overwritten. It does
    not police its callers, as real pools do not: a page freed twice is in the free list twice, and
    the conservation oracle then finds a page too many.
    """

    def __init__(
        self,
        pages: int,
        shard: Shard,
        head_dim: int,
        zeros: Callable[[tuple[int, ...]], torch.Tensor] = CPU.zeros,
    ) -> None:
        self.withheld = 0
        self.refusals: list[Refusal] = []
        self.looks: list[Callable[[], None]] = []
        self.data = zeros((len(shard.layers), pages, len(shard.heads), head_dim))
        self._free = list(range(pages - 1, -1, -1))

    @property
    def total(self) -> int:
        """Pages that there are."""
        self._looked()
        return self.size

    @property
    def free_pages(self) -> int:
        """Pages that ``alloc`` can still hand out."""
        self._looked()
        return self.room

    @property
    def size(self) -> int:
        """``total``, asked by the testbed itself."""
        return self.data.shape[1] - self.withheld

    @property
    def room(self) -> int:
        """``free_pages``, asked by the testbed itself."""
        return len(self._free) - self.withheld

    def refuses(self, pages: int) -> bool:
        """Whether a fault has it that such an allocation fails. Once for each allocation."""
        answers = [refusal(pages) for refusal in self.refusals]  # all: each may count
        return any(answers)

    def alloc(self, pages: int) -> torch.Tensor | None:
        """Indices of pages, int64 of shape (pages,); None, and nothing taken, if too few, or if a
        fault refuses them."""
        return None if self.refuses(pages) else self.take(pages)

    def take(self, pages: int) -> torch.Tensor | None:
        """``alloc`` for a caller that has asked ``refuses`` before it made room."""
        if pages > self.room:
            return None
        kept = len(self._free) - pages
        taken = self._free[kept:]
        del self._free[kept:]
        taken.reverse()
        return torch.tensor(taken, dtype=torch.int64)

    def _looked(self) -> None:
        for look in self.looks:
            look()

    def free(self, indices: torch.Tensor) -> None:
        """Take pages back, and wipe them."""
        self.data[:, indices] = _FREED
        self._free.extend(reversed(indices.tolist()))

    def read(self, indices: torch.Tensor) -> torch.Tensor:
        """A copy of the pages, shape (layers_local, len(indices), heads_local, head_dim)."""
        return self.data[:, indices].cpu()

    def write(self, indices: torch.Tensor, values: torch.Tensor) -> None:
        """Overwrite the pages."""
        self.data[:, indices] = values.to(self.data.device)


class TokenPool:
    """A PagePool spoken to in token indices: page * page_size + offset, int64."""

    def __init__(self, pages: PagePool, page_size: int) -> None:
        self.pages = pages
        self.page_size = page_size

    def alloc(self, tokens: int) -> torch.Tensor | None:
        """Token indices of whole pages for ``tokens`` tokens, or None if there are too few."""
        taken = self.pages.alloc(-(-tokens // self.page_size))
        return None if taken is None else self.tokens_of(taken)[:tokens]

    def free(self, indices: torch.Tensor) -> None:
        """Take back every page whose first token is among the indices."""
        first = indices[indices % self.page_size == 0]
        self.pages.free(first // self.page_size)

    def available_size(self) -> int:
        """Free tokens."""
        return self.pages.free_pages * self.page_size

    def tokens_of(self, pages: torch.Tensor) -> torch.Tensor:
        """Page indices -> the indices of all their tokens, page by page."""
        return (pages[:, None] * self.page_size + torch.arange(self.page_size)).flatten()


@dataclass(frozen=True)
class PoolEntry:
    """A sidecar pool as SGLang's ``entry_map`` lists it."""

    host_pool: TokenPool
    is_primary_index_anchor: bool = False


class HostPools(TokenPool):
    """The host pool and its sidecar pools, as ``cache_controller.mem_pool_host`` is used by SGLang:
    0.5.18 frees through ``entry_map[name].host_pool``, later releases through ``free(indices,
    pool=name)``.
    """

    def __init__(self, main: PagePool, sidecars: Mapping[str, PagePool], page_size: int) -> None:
        super().__init__(main, page_size)
        self.entry_map = {
            name: PoolEntry(TokenPool(pages, page_size)) for name, pages in sidecars.items()
        }

    def pool(self, name: str | None) -> TokenPool:
        """The main pool (None) or a sidecar pool. Raises KeyError."""
        return self if name is None else self.entry_map[name].host_pool

    def free(self, indices: torch.Tensor, pool: str | None = None) -> None:
        """Take back every page whose first token is among the indices, in the pool named."""
        if pool is None:
            super().free(indices)
        else:
            self.pool(pool).free(indices)
