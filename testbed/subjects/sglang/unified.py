"""``UnifiedRadixCache``, lifted: from ``check_hicache_events`` down to the seams."""

import inspect
from typing import Any

from testbed.cache import PrefetchOperation
from testbed.scenario import Scenario
from testbed.subjects.sglang.by_id import IdSeams, TreeCore
from testbed.subjects.sglang.lifted import CacheClass
from testbed.subjects.sglang.seams import Seams
from testbed.subjects.sglang.subject import LiftedSubject

_NEEDS = (
    "check_hicache_events",
    "_drain_async_work",
    "_track_write_through_node",
    "_replace_pending_write_through_node",
)


def _seams(_used: frozenset[str]) -> type[Seams]:
    return IdSeams


UNIFIED = CacheClass(
    module="sglang.srt.mem_cache.unified_radix_cache",
    name="UnifiedRadixCache",
    roots=_NEEDS,
    needs=_NEEDS,
    seams=_seams,
)


class UnifiedSubject(LiftedSubject):
    """One rank's cache run by a UnifiedRadixCache."""

    def state(self, scenario: Scenario) -> dict[str, Any]:
        """The tree core, no components."""
        core = TreeCore(self._cache)
        core.enable_storage = scenario.storage
        return {"components": {}, "tree_core": core}

    def track_write(self, node_id: int) -> None:
        """Lock the node and have the release remember its write."""
        ticket = self._engine.inc_lock_ref(node_id).to_dec_params()
        track = self._engine._track_write_through_node
        # Later releases are told which nodes the write backs up: here always the one it is for.
        several = "publish_node_ids" in inspect.signature(track).parameters
        track(node_id, ticket, *([[node_id]] if several else []))

    def track_load(self, node_id: int) -> None:
        """Lock the node on device and host, remembered as the release's own load-back does."""
        host = self._engine.inc_host_lock_ref(node_id).to_dec_params()
        device = self._engine.inc_lock_ref(node_id).to_dec_params()
        remembered = self._lifted.module.get("_OngoingLoadBack")(node_id, device, host)
        self._engine.ongoing_load_back[node_id] = remembered

    def track_prefetch(self, operation: PrefetchOperation) -> None:
        """Lock the query's anchor on host, remembered as the release's own prefetch does."""
        ticket = self._engine.inc_host_lock_ref(operation.node_id).to_dec_params()
        span = range(len(operation.prefetch_key) * self._cache.sizes.page_tokens)
        remembered = self._lifted.module.get("_OngoingPrefetch")(
            operation.node_id, span, None, operation, ticket, {}
        )
        key = operation.handle if self._adapter.by_handle else operation.request_id
        self._engine.ongoing_prefetch[key] = remembered
        self._engine.cache_controller.prefetch_tokens_occupied += len(span)

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """Publish both parts of a node that was split while its write was in flight."""
        for ack_id in list(self._engine.ongoing_write_through):
            self._engine._replace_pending_write_through_node(
                ack_id, old_id, [new_prefix_id, old_id]
            )
