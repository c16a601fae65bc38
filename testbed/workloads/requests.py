"""Requests through the cache, as a scheduler would send them: the engine under ``prefill`` and
``trace``.

The model, for each request in turn: match its prefix; load back the part that is on host only;
compute the rest; start write-through of every node on its path that has no host copy; hold the path
until the next step. A request for which there is no room waits, and those behind it with it. What a
rank decides follows from its tree alone. A rank without a controller matches and computes all the
same, but neither loads nor writes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from testbed.model.errors import BadInput
from testbed.model.events import Request
from testbed.model.mixing import mix64
from testbed.model.scenario import Call, Scenario
from testbed.scripted_events import Readiness
from testbed.workloads.base import Stage

if TYPE_CHECKING:
    from testbed.cache import Node, TransferController

MAX_BLOCKS = 1 << 20
"""Token blocks of all requests of a workload together; every rank holds them all."""

ReadyAfter = int | tuple[int, int]
"""Steps until a transfer is ready: a number, or [lowest, highest] from which each key draws."""


class RequestLine(NamedTuple):
    """One request: its key and the ids of its token blocks, a page each."""

    key: str
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class RequestPlan:
    """Checked requests. per_step: how many are admitted in a step at most."""

    requests: Sequence[RequestLine]
    per_step: int
    ready_after: ReadyAfter
    backup_after: int
    seed: int

    def begin(self, stage: Stage) -> "Requests":
        """Nothing to set up."""
        return Requests(self, stage)

    def readiness(self, queue: str, key: str) -> Readiness:
        """The same for a key on every rank."""
        if isinstance(self.ready_after, int):
            return Readiness.steps(self.ready_after)
        low, high = self.ready_after
        draw = mix64(self.seed, *f"{queue}:{key}".encode())
        return Readiness.steps(low + draw % (high - low + 1))


class Pace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys that workloads of requests share. per_step: requests admitted in a step at most.
    ready_after: see ReadyAfter. backup_after: steps from a completed write to its backup's ACK."""

    per_step: int = 1
    ready_after: ReadyAfter = 1
    backup_after: int = 1


def plan(requests: Sequence[RequestLine], pace: Pace, scenario: Scenario) -> RequestPlan:
    """Check requests against their scenario. Raises BadInput."""
    ready_after, per_step = pace.ready_after, pace.per_step
    low, high = (ready_after, ready_after) if isinstance(ready_after, int) else ready_after
    if not 0 <= low <= high:
        raise BadInput(f"workload.ready_after is {ready_after}: give n or [low, high], from 0 on")
    if per_step < 1:
        raise BadInput(f"workload.per_step is {per_step}: give a number from 1 on")
    if not requests:
        raise BadInput("workload has no request: raise workload.requests")
    largest = max(requests, key=lambda request: len(request.blocks))
    check_room(largest.key, len(largest.blocks), scenario)
    if pace.backup_after < 0:
        raise BadInput(f"workload.backup_after is {pace.backup_after}: give steps from 0 on")
    return RequestPlan(tuple(requests), per_step, ready_after, pace.backup_after, scenario.seed)


def check_room(key: str, pages: int, scenario: Scenario) -> None:
    """Raise BadInput for a request that no rank has the pages for."""
    room = scenario.sizes.device_pages
    if pages > room:
        raise BadInput(f"workload: {key} has {pages} pages, sizes.device_pages is {room}: raise it")


class Requests:
    """Requests running on one rank."""

    def __init__(self, plan: RequestPlan, stage: Stage) -> None:
        self._plan = plan
        self._stage = stage
        self._waiting = deque(plan.requests)
        self._held: list[Node] = []

    def step(self) -> None:
        """Let last step's requests go, admit this step's."""
        held, self._held = self._held, []
        for node in held:
            self._unlock(node)
        for _ in range(min(self._plan.per_step, len(self._waiting))):
            if not self._admit(self._waiting[0]):
                break
            self._waiting.popleft()

    def asked(self, call: Call) -> Sequence[str]:
        """None: requests here ask storage for nothing, and their loads bear the keys of nodes."""
        return ()

    def locked(self) -> list[int]:
        """The last node of every request of this step."""
        return [node.id for node in self._held]

    def _admit(self, request: RequestLine) -> bool:
        cache, controller = self._stage.cache, self._stage.controller
        match = cache.match_prefix(request.blocks)
        matched = match.last_device_node
        cache.inc_lock_ref(matched.id)
        loaded = 0
        if match.host_pages and controller is not None:
            loaded = self._load_back(controller, match.last_host_node, match.host_pages)
        if loaded:
            cache.inc_lock_ref(match.last_host_node.id)
            self._unlock(matched)
            matched = match.last_host_node
        inserted = cache.insert(request.blocks)
        if inserted is None:
            self._unlock(matched)
            return False
        cache.inc_lock_ref(inserted.leaf.id)
        self._unlock(matched)
        self._held.append(inserted.leaf)
        computed = len(request.blocks) - match.device_pages - loaded
        self._stage.bench.recorder.add(Request, request.key, match.device_pages, loaded, computed)
        if controller is not None:
            self._write_through(controller, inserted.leaf)
        return True

    def _load_back(self, controller: "TransferController", node: "Node", pages: int) -> int:
        key = controller.unique_key("load", node.key)
        if not controller.load(node, key, self._plan.readiness("load", key)):
            return 0
        self._stage.subject.track_load(node.id)
        return pages

    def _write_through(self, controller: "TransferController", leaf: "Node") -> None:
        # Top down, and no further than the first that fails: a copy on host needs its parent's.
        for node in self._stage.cache.without_backup(leaf):
            key = controller.unique_key("write", node.key)
            if not controller.write(node, key, self._plan.readiness("write", key)):
                break
            self._stage.subject.track_write(node.id)

    def _unlock(self, node: "Node") -> None:
        # A subject that lets go of locks it does not hold can have had the node evicted.
        if self._stage.cache.tree.nodes.get(node.id) is node:
            self._stage.cache.dec_lock_ref(node.id)
