"""A lifted SGLang release on one rank: its code on the inside, our cache and controller around it.

Lifting takes what ``check_hicache_events`` reaches in ``UnifiedRadixCache`` and stops at the
methods of ``Seams``, which are ours: locks, host eviction, what a tree walk asks to be done.
Differences between releases are told by what their sources have, never by their number.
"""

import inspect
from collections.abc import Iterable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from testbed.cache import KVCache, PrefetchOperation, TransferController
from testbed.cache.pools import TokenPool
from testbed.protocols import Groups
from testbed.subjects.base import Map
from testbed.subjects.sglang.lift import Library, LiftedClass, LiftError, Module
from testbed.subjects.sglang.releases import Release, fetch

PREFIX = "sglang=="
CACHE_MODULE = "sglang.srt.mem_cache.unified_radix_cache"
CACHE_CLASS = "UnifiedRadixCache"
CONTROLLER_MODULE = "sglang.srt.managers.cache_controller"

_ROOTS = (
    "check_hicache_events",
    "_drain_async_work",
    "_track_write_through_node",
    "_replace_pending_write_through_node",
)


def _undecorated(function: Any = None, **_: Any) -> Any:
    # rank_consensus compares calls over ranks for debugging; it is off in a release unless asked
    # for.
    return function if function is not None else lambda wrapped: wrapped


class LiftedRelease(NamedTuple):
    """One release, lifted. cache: its cache class cut down, without state. engine: that class over
    our seams. source: the module it comes from. ack: the release's own ACK tuple."""

    release: Release
    cache: LiftedClass
    engine: type
    source: Module
    ack: type


@cache
def lifted(version: str) -> LiftedRelease:
    """Fetch and lift a release, once per process. Raises BadInput for a release that does not
    exist, EnvironmentFault (LiftError) for one that cannot be fetched or lifted.
    """
    release = fetch(version)
    library = Library(release, replaced={"rank_consensus": _undecorated})
    source = library.module(CACHE_MODULE)
    cut = [name for name in vars(Seams) if not name.startswith("__")]
    cache = source.lift_class(CACHE_CLASS, _ROOTS, cut)
    for root in _ROOTS:
        if root not in cache.methods:
            raise LiftError(
                f"subject {PREFIX}{version}: its {CACHE_CLASS} has no {root}, choose another"
            )
    engine = type(CACHE_CLASS, (Seams, cache.cls), {})
    ack = library.module(CONTROLLER_MODULE).get("HiCacheAck")
    return LiftedRelease(release, cache, engine, source, ack)


def versions(version: str) -> dict[str, str]:
    """Version, wheel and SHA-256 of the wheel that a lifted release comes from."""
    manifest = lifted(version).release.manifest
    return {
        "sglang": manifest.version,
        "sglang-wheel": manifest.wheel,
        "sglang-sha256": manifest.sha256,
    }


class AbsentAttribute(LiftError, AttributeError):
    """Lifted code read an attribute that the testbed does not give it."""


class Ticket:
    """What a lock gives back. Releases turn it into parameters for the unlock; here both are
    nothing.
    """

    def to_dec_params(self) -> "Ticket":
        """Parameters for the unlock."""
        return self


_TICKET = Ticket()


class Seams:
    """The methods at which lifting stops. Node ids are those of our tree."""

    _cache: KVCache
    _version: str

    def __getattr__(self, name: str) -> Any:
        raise AbsentAttribute(
            f"subject {PREFIX}{self.__dict__.get('_version')}: its code reads self.{name}, which "
            "the testbed does not give it"
        )

    def inc_lock_ref(self, node_id: int, *_: Any) -> Ticket:
        """Lock the path to the root on device."""
        self._cache.inc_lock_ref(node_id)
        return _TICKET

    def dec_lock_ref(self, node_id: int, *_: Any) -> None:
        """Undo one lock on device."""
        self._cache.dec_lock_ref(node_id)

    def inc_host_lock_ref(self, node_id: int) -> Ticket:
        """Lock the path to the root on host."""
        self._cache.inc_host_lock_ref(node_id)
        return _TICKET

    def dec_host_lock_ref(self, node_id: int, *_: Any) -> None:
        """Undo one lock on host."""
        self._cache.dec_host_lock_ref(node_id)

    def evict_host(self, num_tokens: int, *_: Any) -> int:
        """Free host memory; returns tokens freed."""
        page = self._cache.sizes.page_tokens
        return self._cache.evict_host(-(-num_tokens // page)) * page

    def _apply_cache_action(self, action: Any) -> None:
        raise LiftError(
            f"subject {PREFIX}{self._version}: its code asks for {type(action).__name__}, which "
            "our tree never does"
        )

    def _apply_cache_actions(self, actions: Iterable[Any]) -> None:
        for action in actions:
            self._apply_cache_action(action)


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

    def build_storage_backup_spec(self, node_id: int, _with_prefix_keys: bool) -> SimpleNamespace:
        """What of the node goes to storage: host_value are token indices, int64."""
        node = self._cache.node(node_id)
        assert node.host_pages is not None, "its write has just been completed"
        return SimpleNamespace(
            host_value=TokenPool(self._cache.host, self.page_size).tokens_of(node.host_pages),
            token_ids=list(node.blocks),
            hash_value=[node.key],
            prefix_keys=None,
            comp_xfers={},
        )


class SglangSubject:
    """One rank's cache run by a release's own protocol code. It promises nothing of itself."""

    def __init__(
        self,
        lifted_release: LiftedRelease,
        cache: KVCache,
        controller: TransferController | None,
        groups: Groups,
        storage: bool,
    ) -> None:
        self.promises: dict[str, Any] = {}
        self._lifted = lifted_release
        self._engine = engine = lifted_release.engine()
        state = {
            **lifted_release.cache.set_up(),
            **_place(groups),
            "_cache": cache,
            "_version": lifted_release.release.version,
            "metrics_collector": None,
            "components": {},
            "tree_core": TreeCore(cache),
            "cache_controller": controller,
        }
        for name, value in state.items():
            setattr(engine, name, value)
        engine.tree_core.enable_storage = storage
        if controller is not None:
            controller.make_ack = lifted_release.ack
        # Bound here and not wrapped, so that recorded callers begin with the release's own
        # function.
        self.check_hicache_events = engine.check_hicache_events
        self.drain_sends = engine._drain_async_work

    @property
    def controller(self) -> TransferController | None:
        """The transfer controller: the release's ``cache_controller``."""
        controller: TransferController | None = self._engine.cache_controller
        return controller

    @controller.setter
    def controller(self, controller: TransferController | None) -> None:
        self._engine.cache_controller = controller

    def outstanding_sends(self) -> int:
        """Sends not waited for yet."""
        return len(self._engine.work_list)

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
        remembered = self._lifted.source.get("_OngoingLoadBack")(node_id, device, host)
        self._engine.ongoing_load_back[node_id] = remembered

    def track_prefetch(self, operation: PrefetchOperation) -> None:
        """Lock the query's anchor on host, remembered as the release's own prefetch does."""
        ticket = self._engine.inc_host_lock_ref(operation.node_id).to_dec_params()
        span = range(len(operation.prefetch_key) * self._engine.tree_core.page_size)
        remembered = self._lifted.source.get("_OngoingPrefetch")(
            operation.node_id, span, None, operation, ticket, {}
        )
        self._engine.ongoing_prefetch[self._request(operation)] = remembered
        self._engine.cache_controller.prefetch_tokens_occupied += len(span)

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """Publish both parts of a node that was split while its write was in flight."""
        for ack_id in list(self._engine.ongoing_write_through):
            self._engine._replace_pending_write_through_node(
                ack_id, old_id, [new_prefix_id, old_id]
            )

    def pending(self) -> dict[Map, list[int] | list[str]]:
        """Node ids of writes and loads, operation ids of backups, request ids of prefetches."""
        requests = [each.operation.request_id for each in self._engine.ongoing_prefetch.values()]
        return {
            "write": list(self._engine.ongoing_write_through),
            "load": list(self._engine.ongoing_load_back),
            "backup": list(self._engine.ongoing_backup),
            "prefetch": requests,
        }

    def _request(self, operation: PrefetchOperation) -> Any:
        # Later releases hold pending prefetches by the operation's handle, earlier ones by its id.
        by_handle = "handle" in self._lifted.cache.mentions
        return operation.handle if by_handle else operation.request_id


def _place(groups: Groups) -> dict[str, Any]:
    """The rank's place, by the names that releases give its parts."""
    return {
        "tp_group": groups.tp,
        "attn_tp_group": groups.tp,
        "attn_cp_group": groups.cp,
        "pp_group": groups.pp,
        "tp_world_size": groups.topology.tp,
        "pp_rank": groups.at.pp,
        "pp_size": groups.topology.pp,
    }
