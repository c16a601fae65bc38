"""A lifted cache class on one rank: its code on the inside, our cache and controller around it."""

from collections.abc import Callable
from typing import Any

from testbed.cache import KVCache, PrefetchOperation, TransferController
from testbed.cache.prefetch import StorageRequest
from testbed.model.scenario import Call, Scenario
from testbed.protocols import Groups
from testbed.subjects.base import Calls, Map
from testbed.subjects.sglang import step_time
from testbed.subjects.sglang.lifted import CONTROLLER_MODULE, Lifted
from testbed.subjects.sglang.seams import place
from testbed.subjects.sglang.storage import ReducedFetch, sync_groups


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
        self.promises: dict[str, Any] = {"same-site": True}
        self._lifted = lifted
        self._adapter = lifted.adapter
        self._cache = cache
        self._engine = engine = lifted.engine()
        given = {
            **place(groups),
            "_cache": cache,
            "_subject": lifted.source.name,
            "_file": lifted.module.told,
            "metrics_collector": None,
            "cache_controller": controller,
            # A second is a step, see ``step_time``.
            "prefetch_stop_policy": scenario.prefetch.policy,
            "prefetch_timeout_base": float(scenario.prefetch.timeout_steps),
            "prefetch_timeout_per_page": 0.0,
            "prefetch_threshold": cache.sizes.page_tokens,
            **self.state(scenario),
        }
        state = {
            # Sources without storage have no such maps, or none that lifted code reads.
            "ongoing_backup": {},
            "ongoing_prefetch": {},
            # What is given is not set up: to set it up may need a server's configuration.
            **lifted.cache.set_up(*given),
            **given,
        }
        for name, value in state.items():
            setattr(engine, name, value)
        if controller is not None:
            controller.make_ack = lifted.ack
            controller.revokes = lifted.adapter.revoke_queue
            controller.allocates_first = lifted.adapter.allocates_first
            step_time.follow(controller)
        if scenario.storage and lifted.storage is not None:
            # On a rank without a controller too: its peers make them with it.
            over = sync_groups(groups)
            if controller is not None:
                told = (lifted.source.name, CONTROLLER_MODULE)
                controller.fetch = ReducedFetch(lifted.storage, told, controller, groups, over)
        # Bound here and not wrapped, so that recorded callers begin with the release's own
        # function.
        self.check_hicache_events = engine.check_hicache_events
        self.drain_sends = getattr(engine, lifted.adapter.drain, _nothing)
        self.calls: Calls = {
            call: self._call(call, method) for call, method in lifted.adapter.calls.items()
        }

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

    def _call(self, call: Call, method: str) -> Callable[[str], object]:
        """What the loop calls for ``call``, given a request or load; ``method`` is the source's."""
        engine = self._engine
        by_handle = self._adapter.by_handle or self._adapter.checks_by_rid

        def check_prefetch(request: str) -> object:
            return engine.check_prefetch_progress(StorageRequest(request) if by_handle else request)

        def poll_load_back(load: str) -> object:
            controller = self.controller
            place = controller.layer_done_counter.consumer_index(load) if controller else -1
            return engine.is_load_back_event_done(place)

        if call == "prefetch-check":
            return check_prefetch
        if call == "load-back-poll":
            return poll_load_back
        if call == "write-back":
            return lambda _: engine.writing_check(write_back=True)
        return lambda _: getattr(engine, method)()

    def _request_of(self, key: Any) -> str:
        request: str = key.rid if self._adapter.by_handle else key
        return request


def _nothing() -> None:
    """Sources without sends have none to wait for."""
