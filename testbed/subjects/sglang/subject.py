"""A lifted cache class on one rank: its code on the inside, our cache and controller around it."""

from typing import Any

from testbed.cache import KVCache, PrefetchOperation, TransferController
from testbed.protocols import Groups
from testbed.scenario import Scenario
from testbed.subjects.base import Map
from testbed.subjects.sglang.lifted import Lifted
from testbed.subjects.sglang.seams import place


class LiftedSubject:
    """What subjects of every lifted cache class have in common. It promises nothing of itself.

    A subclass says what its class's state is (``state``) and how its class remembers transfers
    (``track_*``, ``on_split``).
    """

    def __init__(
        self,
        lifted: Lifted,
        cache: KVCache,
        controller: TransferController | None,
        groups: Groups,
        scenario: Scenario,
    ) -> None:
        self.promises: dict[str, Any] = {}
        self._lifted = lifted
        self._adapter = lifted.adapter
        self._cache = cache
        self._engine = engine = lifted.engine()
        state = {
            # Sources without storage have no such maps, or none that lifted code reads.
            "ongoing_backup": {},
            "ongoing_prefetch": {},
            **lifted.cache.set_up(),
            **place(groups),
            "_cache": cache,
            "_subject": lifted.source.name,
            "metrics_collector": None,
            "cache_controller": controller,
            **self.state(scenario),
        }
        for name, value in state.items():
            setattr(engine, name, value)
        if controller is not None:
            controller.make_ack = lifted.ack
            controller.revokes = lifted.adapter.revoke_queue
        # Bound here and not wrapped, so that recorded callers begin with the release's own
        # function.
        self.check_hicache_events = engine.check_hicache_events
        self.drain_sends = getattr(engine, lifted.adapter.drain, _nothing)

    def state(self, scenario: Scenario) -> dict[str, Any]:
        """Attributes of the class's own that its set-up does not give, or gives otherwise."""
        raise NotImplementedError

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
        return len(self._engine.work_list) if self._adapter.drain else 0

    def track_write(self, node_id: int) -> None:
        """Lock the node and have the release remember its write."""
        raise NotImplementedError

    def track_load(self, node_id: int) -> None:
        """Lock the node on device and host, and have the release remember its load."""
        raise NotImplementedError

    def track_prefetch(self, operation: PrefetchOperation) -> None:
        """Lock the query's anchor on host and have the release remember the query."""
        raise NotImplementedError

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """Publish both parts of a node that was split while its write was in flight."""
        raise NotImplementedError

    def pending(self) -> dict[Map, list[int] | list[str]]:
        """Node ids of writes and loads, operation ids of backups, request ids of prefetches."""
        return {
            "write": list(self._engine.ongoing_write_through),
            "load": list(self._engine.ongoing_load_back),
            "backup": list(self._engine.ongoing_backup),
            "prefetch": [self._request_of(key) for key in self._engine.ongoing_prefetch],
        }

    def _request_of(self, key: Any) -> str:
        request: str = key.rid if self._adapter.by_handle else key
        return request


def _nothing() -> None:
    """Sources without sends have none to wait for."""
