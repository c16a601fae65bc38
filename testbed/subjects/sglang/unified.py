"""``UnifiedRadixCache``, lifted: from ``check_hicache_events`` down to the seams."""

import inspect
from collections.abc import Iterator
from typing import Any

from testbed.cache import PrefetchOperation
from testbed.model.scenario import Scenario
from testbed.subjects.sglang.adapters import CALLED
from testbed.subjects.sglang.by_id import IdSeams, TreeCore
from testbed.subjects.sglang.by_node import (
    Faces,
    NodeSeams,
    keep_host_copy,
    pending_loads,
    pending_writes,
)
from testbed.subjects.sglang.lift import LiftedClass
from testbed.subjects.sglang.lifted import CacheClass
from testbed.subjects.sglang.seams import Seams
from testbed.subjects.sglang.subject import LiftedSubject

_ROOTS = (
    "check_hicache_events",
    "_drain_async_work",
    "_reap_completed_async_work",
    "_track_write_through_node",
    "_replace_pending_write_through_node",
    *CALLED,
)


def _needs(cache: LiftedClass) -> Iterator[str]:
    yield "check_hicache_events"
    if "_finish_write_through_ack" in cache.methods:
        # Then a pending write is an entry of the source's own making, several nodes in it.
        yield "_track_write_through_node"
        yield "_replace_pending_write_through_node"


def _seams(used: frozenset[str]) -> type[Seams]:
    return IdSeams if "tree_core" in used else NodeSeams


UNIFIED = CacheClass(
    module="sglang.srt.mem_cache.unified_radix_cache",
    name="UnifiedRadixCache",
    roots=_ROOTS,
    needs=_needs,
    seams=_seams,
    controller_optional=True,
)


class UnifiedSubject(LiftedSubject):
    """One rank's cache run by a UnifiedRadixCache, which speaks of nodes by id or as objects."""

    def state(self, scenario: Scenario) -> dict[str, Any]:
        """No components but the base one; the tree core, or the maps that stand in for it."""
        by_id = self._adapter.by_id
        return {
            "components": {},
            **(self._core(scenario) if by_id else self._maps(scenario)),
        }

    def _core(self, scenario: Scenario) -> dict[str, Any]:
        core = TreeCore(self._cache)
        core.enable_storage = scenario.storage
        return {"tree_core": core}

    def _maps(self, scenario: Scenario) -> dict[str, Any]:
        self._faces = Faces(self._cache)
        return {
            "_components_tuple": (),
            "root_node": self._faces.of(self._cache.root),
            "page_size": self._cache.sizes.page_tokens,
            "enable_storage": scenario.storage,
            "ongoing_write_through": pending_writes(self._cache),
            "ongoing_load_back": pending_loads(self._cache, self._adapter.load_locks_host),
        }

    def _node(self, node_id: int) -> Any:
        return node_id if self._adapter.by_id else self._faces.of_id(node_id)

    def track_write(self, node_id: int) -> None:
        """Lock the node and have the release remember its write."""
        engine, node = self._engine, self._node(node_id)
        ticket = engine.inc_lock_ref(node).to_dec_params()
        if "_track_write_through_node" not in self._lifted.cache.methods:
            engine.ongoing_write_through[node_id] = (node, ticket)
            return
        track = engine._track_write_through_node
        # Later releases are told which nodes the write backs up: here always the one it is for.
        several = "publish_node_ids" in inspect.signature(track).parameters
        track(node, ticket, *([[node]] if several else []))

    def track_load(self, node_id: int) -> None:
        """Lock the node on device and host, remembered as the release's own load-back does."""
        engine, node = self._engine, self._node(node_id)
        tickets = [engine.inc_lock_ref(node).to_dec_params()]
        if self._adapter.load_locks_host:
            tickets.append(engine.inc_host_lock_ref(node).to_dec_params())
        else:
            keep_host_copy(self._cache, node_id)
        engine.ongoing_load_back[node_id] = self._entry("_OngoingLoadBack", node, *tickets)

    def track_prefetch(self, operation: PrefetchOperation) -> None:
        """Lock the query's anchor on host, remembered as the release's own prefetch does."""
        engine, node = self._engine, self._node(operation.node_id)
        ticket = engine.inc_host_lock_ref(node).to_dec_params()
        span, pages = operation.prefetch_key, operation.host_indices
        entry = self._entry("_OngoingPrefetch", node, span, pages, operation, ticket, {})
        key = operation.handle if self._adapter.by_handle else operation.request_id
        engine.ongoing_prefetch[key] = entry
        engine.cache_controller.prefetch_tokens_occupied += len(span)

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """Publish both parts of a node that was split while its write was in flight."""
        replace = getattr(self._engine, "_replace_pending_write_through_node", None)
        if replace is None:
            return  # Such a release publishes a node when its write begins, parts and all.
        old, new = self._node(old_id), [self._node(new_prefix_id), self._node(old_id)]
        if "ack_id" not in inspect.signature(replace).parameters:
            replace(old, new)
            return
        for ack_id in list(self._engine.ongoing_write_through):
            replace(ack_id, old, new)

    def _entry(self, named: str, *values: Any) -> Any:
        # Before such an entry had a type of its own, it was a plain tuple of the same things.
        module = self._lifted.module
        return module.get(named)(*values) if module.has(named) else values
