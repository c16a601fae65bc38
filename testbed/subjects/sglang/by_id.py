"""Our tree for lifted code that addresses nodes by id and asks a ``tree_core`` about them."""

from collections.abc import Sequence
from typing import Any

import torch

from testbed.cache import KVCache, PrefetchKey
from testbed.cache.pools import TokenPool
from testbed.subjects.sglang.seams import (
    TICKET,
    HostInserted,
    Seams,
    StandIn,
    Ticket,
    insert_on_host,
)


class IdSeams(Seams):
    """Locks by node id. Node ids are those of our tree."""

    def inc_lock_ref(self, node_id: int, *_: Any) -> Ticket:
        """Lock the path to the root on device."""
        self._cache.inc_lock_ref(node_id)
        return TICKET

    def dec_lock_ref(self, node_id: int, *_: Any) -> None:
        """Undo one lock on device."""
        self._cache.dec_lock_ref(node_id)

    def inc_host_lock_ref(self, node_id: int) -> Ticket:
        """Lock the path to the root on host."""
        self._cache.inc_host_lock_ref(node_id)
        return TICKET

    def dec_host_lock_ref(self, node_id: int, *_: Any) -> None:
        """Undo one lock on host."""
        self._cache.dec_host_lock_ref(node_id)


class TreeCore:
    """Our tree as lifted code addresses its own: by node ids, with results in its terms."""

    # Victims of reclaiming host duplicates, hashed. Our tree reclaims none, on every rank alike.
    write_back_duplicate_reclaim_digest = 0

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.page_size = cache.sizes.page_tokens
        self.enable_storage = False

    def mark_write_through_pending(
        self, marked: int | Sequence[int], ack_id: int | None = None
    ) -> list[int]:
        """Host copies of a node, or of several in later releases, are in the making; which."""
        node_ids = [marked] if isinstance(marked, int) else list(marked)
        for node_id in node_ids:
            self._cache.mark_write_through_pending(node_id)
        return node_ids

    def finish_write_through(self, node_ids: Sequence[int], ack_id: int) -> None:
        """The nodes' host copies are whole."""
        self._cache.finish_write_through(node_ids, ack_id)

    def finish_load_back(self, node_id: int) -> None:
        """The device copies loaded under this node's id are whole."""
        self._cache.finish_load_back(node_id)

    def insert_host(
        self, anchor: int, key: PrefetchKey, host_indices: torch.Tensor, _hashes: Sequence[str]
    ) -> HostInserted:
        """Pages fetched from storage, below a node."""
        return insert_on_host(self._cache, anchor, key, host_indices)

    def commit_hicache_transfers(self, *_: Any, **__: Any) -> None:
        """What the components have of a transfer: there are none."""

    def build_storage_backup_spec(self, node_id: int, _with_prefix_keys: bool) -> StandIn:
        """What of the node goes to storage: host_value are token indices, int64."""
        node = self._cache.node(node_id)
        assert node.host_pages is not None, "its write has just been completed"
        return StandIn(
            host_value=TokenPool(self._cache.host, self.page_size).tokens_of(node.host_pages),
            token_ids=list(node.blocks),
            hash_value=[node.key],
            prefix_keys=None,
            comp_xfers={},
        )
