"""Prefetches: pages that come from storage into the host pool, one after another.

The model. Storage is asked for the pages that follow an *anchor* node and says how many it has.
Once host pages are allocated for them, they arrive in order (``fetch``). Whoever terminates the
operation keeps what had arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from testbed.scripted_events import FakeEvent, Readiness


class StorageRequest(NamedTuple):
    """Who asked for a prefetch, as later releases hold it in ``operation.handle``."""

    rid: str


class PrefetchKey(Sequence[int]):
    """The blocks that a request asks for, spoken to in tokens: its length and its slices are."""

    def __init__(self, request_id: str, blocks: tuple[int, ...], page_tokens: int) -> None:
        self.request_id = request_id
        self.blocks = blocks
        self._page_tokens = page_tokens

    def __len__(self) -> int:
        return len(self.blocks) * self._page_tokens

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            return self.blocks[place // self._page_tokens]
        pages = range(len(self))[place][:: self._page_tokens]
        blocks = tuple(self.blocks[at // self._page_tokens] for at in pages)
        return PrefetchKey(self.request_id, blocks, self._page_tokens)


@dataclass
class PoolHits:
    """Pages that sidecar pools got, by pool; prefetches here bring none for them."""

    extra_pool_hit_pages: dict[str, int] = field(default_factory=dict)

    def update_extra_pool_hit_pages(self, hits: dict[str, int]) -> None:
        """More of them."""
        self.extra_pool_hit_pages.update(hits)


@dataclass(eq=False)
class PrefetchOperation:
    """A storage query for the pages that follow a node, and what came of it. Field names as in
    SGLang.

    node_id: its anchor, host-locked while the prefetch is pending. page_after: readiness of each
    page after the one before it. storage_hit_count: tokens found. host_indices: token indices,
    int64, allocated for what was found. completed_tokens: arrived, and told to the subject.
    prefix_keys: hashes of what comes before, where a source passes them on: never here.
    start_time: the step, as a second a step. revoked: storage had too little, its pages were given
    back.
    """

    id: int
    request_id: str
    node_id: int
    prefetch_key: PrefetchKey
    found_tokens: int = 0
    page_after: Readiness = field(default_factory=lambda: Readiness.steps(1))
    start_time: float = 0.0
    storage_hit_count: int = 0
    completed_tokens: int = 0
    hash_value: list[str] = field(default_factory=list)
    all_hash_values: list[str] | None = None
    prefix_keys: list[str] | None = None
    host_indices: torch.Tensor | None = None
    pool_transfers: list[Any] | None = None
    pool_transfers_done: bool = True
    pool_storage_result: PoolHits = field(default_factory=PoolHits)
    ack_releases_incomplete_host_indices: bool = True
    deadline_expired: bool = False
    sidecar_hash_values: list[str] | None = None
    stats_requested_tokens: int = 0
    stats_total_tokens: int = 0
    storage_start: int = 0
    terminated: bool = False
    revoked: bool = False
    arrived_tokens: int = 0
    events: list[FakeEvent] = field(default_factory=list)

    @property
    def handle(self) -> StorageRequest:
        """The request, as releases from 0.5.20 on name it."""
        return StorageRequest(self.request_id)

    def mark_terminate(self) -> None:
        """No more pages are wanted."""
        self.terminated = True

    def is_terminated(self) -> bool:
        """Whether it was told so."""
        return self.terminated
