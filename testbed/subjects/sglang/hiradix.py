"""``HiRadixCache``, lifted: from ``check_hicache_events`` down to the seams.

Its own tree nodes hold locks, pages and marks; ours do, behind their faces (``by_node``). What it
decides of a tree walk (which node to write, to load, to evict) is the workload's here.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from testbed.cache import Node, PrefetchKey, PrefetchOperation
from testbed.model.scenario import Call, Scenario
from testbed.subjects.sglang.adapters import CALLED
from testbed.subjects.sglang.by_node import (
    Faces,
    NodeFace,
    NodeSeams,
    keep_host_copy,
    pending_loads,
    pending_writes,
)
from testbed.subjects.sglang.lift import LiftedClass
from testbed.subjects.sglang.lifted import CacheClass
from testbed.subjects.sglang.seams import Seams, StandIn, insert_on_host
from testbed.subjects.sglang.subject import LiftedSubject

_ROOTS = (
    "check_hicache_events",
    "_drain_async_work",
    "_reap_completed_async_work",
    "_track_write_through_node",
    "_replace_pending_write_through_node",
    "_prefetch_timeout_check_linear_func",
    *CALLED,
)


class HiRadixNode(NodeFace):
    """A node with the release's own key. make_key: token ids -> such a key."""

    def __init__(self, make_key: Callable[[list[int]], Any], faces: Faces, node: Node) -> None:
        super().__init__(faces, node)
        self._make_key = make_key

    @property
    def key(self) -> Any:
        """The key over its tokens: each token of a page bears the number of the page's block."""
        page = self._faces.cache.sizes.page_tokens
        return self._make_key([block for block in self._node.blocks for _ in range(page)])


class HiRadixSeams(NodeSeams):
    """What HiRadixCache asks of others and we answer."""

    def _get_extra_pools(self) -> dict[str, Any]:
        """Pools beside the KV cache's own, which only some models have: none."""
        return {}

    def _insert_helper_host(  # type: ignore[override]
        self, face: NodeFace, key: Any, host_indices: torch.Tensor, _hashes: list[str]
    ) -> int:
        """Pages fetched from storage, below a node; returns tokens of them that were there before.

        key: a part of what the request asked for, wrapped in the release's own key or not.
        """
        asked: PrefetchKey = getattr(key, "token_ids", key)
        return insert_on_host(self._cache, face.id, asked, host_indices).prefix_len


class _OtherModels:
    """Stands for a class of which no object is an instance."""


def _needs(cache: LiftedClass) -> Iterator[str]:
    yield "check_hicache_events"
    if "_finish_write_through_ack" in cache.methods:
        # Then a pending write is an entry of the source's own making, several nodes in it.
        yield "_track_write_through_node"
        yield "_replace_pending_write_through_node"


def _seams(_used: frozenset[str]) -> type[Seams]:
    return HiRadixSeams


HIRADIX = CacheClass(
    module="sglang.srt.mem_cache.hiradix_cache",
    name="HiRadixCache",
    roots=_ROOTS,
    needs=_needs,
    seams=_seams,
    controller_optional=False,  # it makes one itself, whatever it is made with
    # Where events are sent that nobody follows, and a controller of models that none of ours is.
    stand_ins={"StorageMedium": StandIn(CPU="CPU"), "HybridCacheController": _OtherModels},
)


class HiRadixSubject(LiftedSubject):
    """One rank's cache run by a HiRadixCache."""

    def state(self, scenario: Scenario) -> dict[str, Any]:
        """Pending maps that tell our cache, faces of our nodes, storage as the scenario has it."""
        make_key = self._lifted.module.get("RadixKey")
        self._faces = faces = Faces(self._cache, partial(HiRadixNode, make_key))
        return {
            "_faces": faces,
            "root_node": faces.of(self._cache.root),
            "ongoing_write_through": pending_writes(self._cache),
            "ongoing_load_back": pending_loads(self._cache, locks_host=False),
            "page_size": self._cache.sizes.page_tokens,
            "enable_storage": scenario.storage,
            "enable_storage_metrics": False,
            "hicache_storage_pass_prefix_keys": False,
            "kv_events": StandIn(record_store=_unheard),
            **self._timeout(scenario.prefetch.timeout_steps),
        }

    def _timeout(self, steps: int) -> dict[str, Any]:
        """The release's own timeout, of as many steps whatever was asked for."""
        methods = self._lifted.cache.methods
        check = "_prefetch_timeout_check_linear_func"
        return {
            "prefetch_timeout_config": StandIn(base=steps, max=steps, per_ki_token=0),
            **({"is_prefetch_timeout": getattr(self._engine, check)} if check in methods else {}),
        }

    def track_write(self, node_id: int) -> None:
        """Lock the node and have the release remember its write, as its write-through does."""
        face = self._faces.of_id(node_id)
        if "_track_write_through_node" in self._lifted.cache.methods:
            self._engine._track_write_through_node(face, len(face.key))
        else:
            self._engine.ongoing_write_through[node_id] = face
        self._engine.inc_lock_ref(face)

    def track_load(self, node_id: int) -> None:
        """Lock the node on device and host, remembered as the release's own load-back does."""
        face = self._faces.of_id(node_id)
        keep_host_copy(self._cache, node_id)
        self._engine.ongoing_load_back[node_id] = face
        self._engine.inc_lock_ref(face)

    def track_prefetch(self, operation: PrefetchOperation) -> None:
        """Lock the query's anchor on host, remembered as the release's own prefetch does."""
        face = self._faces.of_id(operation.node_id)
        face.protect_host()
        asked = operation.prefetch_key
        pages = [operation.host_indices] if self._adapter.allocates_first else []
        self._engine.ongoing_prefetch[operation.request_id] = (face, asked, *pages, operation)
        self._engine.cache_controller.prefetch_tokens_occupied += len(asked)

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """Publish both parts of a node that was split while its write was in flight.

        Sources that keep no list of what to publish take the split for no concern of the write.
        """
        if "_replace_pending_write_through_node" in self._lifted.cache.methods:
            prefix, suffix = self._faces.of_id(new_prefix_id), self._faces.of_id(old_id)
            self._engine._replace_pending_write_through_node(suffix, [prefix, suffix])

    def _call(self, call: Call, method: str) -> Callable[[str], object]:
        return self._write_back if call == "write-back" else super()._call(call, method)

    def _write_back(self, _: str) -> None:
        # Its writes are never locked and the check unlocks none, where write-through's are both:
        # what is pending when this is called counts as write-back's from here on.
        for node_id in self._engine.ongoing_write_through:
            self._cache.dec_lock_ref(node_id)
        self._engine.writing_check(write_back=True)


def _unheard(*_: Any, **__: Any) -> None:
    """Events for routers that follow a server's cache: nobody follows ours."""
