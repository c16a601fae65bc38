"""``scripted``: transfers and storage items that a scenario lists one by one.

The model. Each transfer has a node of its own, PAGES pages below the root, on *every* rank; only
the ranks it is ``on`` enqueue it. A write's node is computed in step ``at``; a load's node is on
host only from the start. Keys say the place in the list: ``w0``, ``l0``, ``p0``. Nothing is ever
evicted: a scenario whose nodes do not all fit is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from testbed.model.errors import BadInput, brief
from testbed.model.mixing import mix63
from testbed.model.scenario import Call, Scenario, Where, select
from testbed.scripted_events import Readiness
from testbed.workloads.base import Stage

if TYPE_CHECKING:
    from testbed.cache import Node, TransferController

PAGES = 2
"""Pages of each scripted node."""

_STREAMS = {"write": 1, "load": 2, "anchor": 3, "base": 4, "fetch": 5}


class TransferSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One write or load. at: step in which it is enqueued. ready_after: see ``Readiness.parse``."""

    at: int = 0
    ready_after: int | dict[str, Any] | None = 1
    on: Where = "all"


class StorageSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One item of a storage control queue, there from step ``at`` on.

    queue: ``prefetch`` (a query that found too little for a pending prefetch: the drain revokes
    it), ``release`` (a host page of a trimmed prefetch, to be freed), or ``sidecar:<pool>``
    (likewise in that pool, on the ranks of ``on`` that own it).
    """

    queue: str
    at: int = 0
    on: Where = "all"


class PrefetchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request, ``f0`` and so on, that asks storage for the PAGES pages after a node of its own.

    at: step in which it asks, and is told how many of them storage has: ``found``. page_after: see
    ``Readiness.parse``; of each page after the one before it. Whether it is stopped is for the
    scenario's ``calls`` to ask.
    """

    at: int = 0
    found: int = 2
    page_after: int | dict[str, Any] | None = 1
    on: Where = "all"


class ScriptedSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of the ``scripted`` workload. backup_after: steps from a completed write to the ACK
    of its backup to storage.
    """

    kind: Literal["scripted"] = "scripted"
    writes: list[TransferSpec] = []
    loads: list[TransferSpec] = []
    storage: list[StorageSpec] = []
    prefetches: list[PrefetchSpec] = []
    backup_after: int = 1


@dataclass(frozen=True)
class _Item:
    """One line of the script. queue: write, load, fetch, or a storage queue's name. found: pages,
    of a fetch.
    """

    key: str
    queue: str
    at: int
    on: frozenset[int]
    readiness: Readiness
    found: int = 0


@dataclass(frozen=True)
class ScriptedPlan:
    """A checked script."""

    items: tuple[_Item, ...]
    backup_after: int
    ranks: int

    @property
    def scripts(self) -> dict[int, dict[str, list[int]]]:
        """Rank -> queue (write, load) -> the step of each transfer that it enqueues."""
        return {
            rank: {
                queue: [item.at for item in self.items if item.queue == queue and rank in item.on]
                for queue in ("write", "load")
            }
            for rank in range(self.ranks)
        }

    def begin(self, stage: Stage) -> "Scripted":
        """Plant what must be on host from the start."""
        return Scripted(self, stage)


def plan(spec: ScriptedSpec, scenario: Scenario) -> ScriptedPlan:
    """Check a script against its scenario. Raises BadInput."""
    items: list[_Item] = []
    for queue, listed in (("write", spec.writes), ("load", spec.loads)):
        for place, transfer in enumerate(listed):
            where = f"workload.{queue}s[{place}]"
            _check_at(transfer.at, where, scenario)
            on = select(transfer.on, scenario.topology)
            readiness = Readiness.parse(transfer.ready_after, f"{where}.ready_after")
            items.append(_Item(f"{queue[0]}{place}", queue, transfer.at, on, readiness))
    for place, item in enumerate(spec.storage):
        where = f"workload.storage[{place}]"
        _check_at(item.at, where, scenario)
        _check_queue(item.queue, where, scenario)
        on = select(item.on, scenario.topology) & _owners(item.queue, scenario)
        items.append(_Item(f"p{place}", item.queue, item.at, on, Readiness.steps(0)))
    items += [_prefetch(place, asked, scenario) for place, asked in enumerate(spec.prefetches)]
    if spec.backup_after < 0:
        raise BadInput(f"workload.backup_after is {spec.backup_after}: give steps from 0 on")
    for name, listed_items in (("storage", spec.storage), ("prefetches", spec.prefetches)):
        if listed_items and not scenario.storage:
            raise BadInput(f'workload.{name} lists items but storage is off: set "storage": true')
    _check_room(items, scenario)
    return ScriptedPlan(tuple(items), spec.backup_after, scenario.topology.size)


def _prefetch(place: int, asked: PrefetchSpec, scenario: Scenario) -> _Item:
    where = f"workload.prefetches[{place}]"
    _check_at(asked.at, where, scenario)
    if not 0 <= asked.found <= PAGES:
        raise BadInput(f"{where}.found is {asked.found}: give pages from 0 to {PAGES}")
    on = select(asked.on, scenario.topology)
    readiness = Readiness.parse(asked.page_after, f"{where}.page_after")
    return _Item(f"f{place}", "fetch", asked.at, on, readiness, asked.found)


def _check_at(at: int, where: str, scenario: Scenario) -> None:
    if not 0 <= at < scenario.steps:
        raise BadInput(f"{where}.at is {at}: the run has steps 0 to {scenario.steps - 1}")


def _check_queue(queue: str, where: str, scenario: Scenario) -> None:
    names = ["prefetch", "release", *(f"sidecar:{pool.name}" for pool in scenario.sidecars)]
    if queue not in names:
        raise BadInput(f"{where}.queue is {brief(queue)}: give one of {', '.join(names)}")


def _owners(queue: str, scenario: Scenario) -> frozenset[int]:
    for pool in scenario.sidecars:
        if queue == f"sidecar:{pool.name}":
            return select(pool.on, scenario.topology)
    return frozenset(range(scenario.topology.size))


def _check_room(items: list[_Item], scenario: Scenario) -> None:
    def count(*queues: str) -> int:
        return sum(item.queue in queues for item in items)

    device = PAGES * count("write", "load")
    # A fetch has its anchor, and the pages it asks for.
    host = PAGES * count("write", "load", "prefetch", "fetch", "fetch") + count("release")
    for pool, needed in (("device_pages", device), ("host_pages", host)):
        given = getattr(scenario.sizes, pool)
        if needed > given:
            raise BadInput(f"workload needs {needed} pages, sizes.{pool} is {given}: raise it")


class Scripted:
    """A script running on one rank."""

    def __init__(self, plan: ScriptedPlan, stage: Stage) -> None:
        self._stage = stage
        self._rank = stage.bench.rank
        self._by_step: dict[int, list[_Item]] = {}
        self._planted: dict[str, Node] = {}
        self._come: dict[str, list[str]] = {}
        for item in plan.items:
            self._by_step.setdefault(item.at, []).append(item)
            if item.queue == "load":
                self._planted[item.key] = self._plant("load", item)
            elif item.queue == "prefetch":
                self._planted[item.key] = self._plant("anchor", item)
            elif item.queue == "fetch":
                self._planted[item.key] = self._plant("base", item)

    def step(self) -> None:
        """Enqueue what the script has for this step."""
        for item in self._by_step.get(self._stage.bench.clock.step, ()):
            self._come.setdefault(item.queue, []).append(item.key)
            if item.queue == "write":
                self._write(item)
            elif self._enqueues(item):
                self._enqueue(item)

    def asked(self, call: Call) -> Sequence[str]:
        """Fetches and loads whose step has come, on whatever ranks they were begun."""
        queue = {"prefetch-check": "fetch", "load-back-poll": "load"}.get(call)
        return self._come.get(queue, []) if queue else []

    def locked(self) -> list[int]:
        """A script holds no locks of its own."""
        return []

    def _enqueues(self, item: _Item) -> bool:
        return self._rank in item.on and self._stage.controller is not None

    def _write(self, item: _Item) -> None:
        inserted = self._stage.cache.insert(_blocks("write", item))
        controller = self._stage.controller
        # The plan has checked the room: if there is none, a fault took it.
        if inserted is None or controller is None or not self._enqueues(item):
            return
        if controller.write(inserted.leaf, item.key, item.readiness):
            self._stage.subject.track_write(inserted.leaf.id)

    def _enqueue(self, item: _Item) -> None:
        controller = self._stage.controller
        assert controller is not None
        if item.queue == "load":
            node = self._planted[item.key]
            if controller.load(node, item.key, item.readiness):
                self._stage.subject.track_load(node.id)
        elif item.queue in ("prefetch", "fetch"):
            operation = controller.begin_prefetch(
                self._planted[item.key],
                item.key,
                _blocks("fetch", item),
                item.found,
                item.readiness,
            )
            if operation is None:
                return  # as a server does: the request goes without
            self._stage.subject.track_prefetch(operation)
            controller.answer_prefetch(operation)
        else:
            _release(controller, item)

    def _plant(self, stream: str, item: _Item) -> "Node":
        return self._stage.cache.plant_on_host(_blocks(stream, item))


def _release(controller: "TransferController", item: _Item) -> None:
    pool = item.queue.removeprefix("sidecar:") if item.queue != "release" else None
    indices = controller.mem_pool_host.pool(pool).alloc(controller.cache.sizes.page_tokens)
    if indices is None:
        return  # likewise
    controller.storage_queues()[item.queue].put(indices, key=item.key)


def _blocks(stream: str, item: _Item) -> tuple[int, ...]:
    place = int(item.key[1:])
    return tuple(mix63(_STREAMS[stream], place, page) for page in range(PAGES))
