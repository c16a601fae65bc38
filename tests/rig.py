"""One rank alone, and small worlds of forked ranks, for tests of protocols and subjects."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch.distributed as dist

from testbed import subjects
from testbed.cache import KVCache, Node, PrefetchOperation, TransferController, shard_of
from testbed.model.errors import EnvironmentFault
from testbed.model.events import Complete, Enter, Event
from testbed.model.scenario import Scenario, Sidecar
from testbed.model.topology import GroupSpec, Topology
from testbed.protocols import Groups
from testbed.recorder.recorder import ListRecorder
from testbed.recorder.shim import Shim
from testbed.scripted_events import Clock, Readiness

MINIMAL = ("separate", "batched", "fused")
RELEASES = ("sglang==0.5.16", "sglang==0.5.18", "sglang==0.5.19", "sglang==0.5.23")
ALONE = Groups(Topology(), 0)
RANK_LIMIT_S = 60


def at_hand(subject: str) -> str:
    """The subject's name, once its sources are there; one line of failure where they are not."""
    why_not = _why_not_at_hand(subject)
    if why_not:
        pytest.fail(why_not, pytrace=False)
    return subject


@cache
def _why_not_at_hand(subject: str) -> str:
    try:
        subjects.prepare(subject)
    except EnvironmentFault as error:
        return str(error)
    return ""


class Rig:
    """One rank: clock, cache, controller and subject. ``step`` is what a rank's loop does."""

    def __init__(
        self,
        subject: str,
        *,
        storage: bool = False,
        sidecars: tuple[str, ...] = (),
        groups: Groups = ALONE,
        recorder: ListRecorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        scenario = Scenario(
            name="rig",
            topology=groups.topology,
            workload={},
            subject=subject,
            storage=storage,
            sidecars=[Sidecar(name) for name in sidecars],
        )
        self.groups = groups
        self.clock = clock or Clock()
        self.recorder = recorder or ListRecorder(self.clock)
        shard = shard_of(scenario.sizes, groups.topology, groups.rank)
        self.cache = KVCache(scenario.sizes, shard, self.recorder)
        self.controller = TransferController(self.cache, self.clock, self.recorder, sidecars)
        self.subject = subjects.make(subject, self.cache, self.controller, groups, scenario)
        self.clock.tick()

    def write(self, blocks: list[int], ready_after: int = 0) -> Node:
        """Compute the blocks and start writing them to host."""
        inserted = self.cache.insert(blocks)
        assert inserted is not None
        node = inserted.leaf
        assert self.controller.write(node, f"w{blocks[0]}", Readiness.steps(ready_after))
        self.subject.track_write(node.id)
        return node

    def load(self, blocks: list[int], ready_after: int = 0) -> Node:
        """Put the blocks on host only, and start loading them."""
        node = self.cache.plant_on_host(blocks)
        assert self.controller.load(node, f"l{blocks[0]}", Readiness.steps(ready_after))
        self.subject.track_load(node.id)
        return node

    def prefetch(self, anchor: Node, tokens_found: int = 0) -> PrefetchOperation:
        """A storage query below ``anchor`` that came back with ``tokens_found``."""
        operation = self.controller.begin_prefetch(anchor, "r0", (901, 902))
        assert operation is not None
        operation.found_tokens = tokens_found
        self.subject.track_prefetch(operation)
        self.controller.answer_prefetch(operation)
        return operation

    def step(self, times: int = 1) -> None:
        """Scheduler steps."""
        for _ in range(times):
            self.controller.progress()
            self.subject.check_hicache_events()
            self.clock.tick()

    def completed(self) -> list[str]:
        """Keys of what was completed, in order; with a mark if early or with wrong bytes."""
        return [
            event.key + ("" if event.ready and not event.bad_pages else "!")
            for event in of_kind(self.recorder.events, Complete)
        ]


EventT = TypeVar("EventT")
Body = Callable[[Rig], Any]


def run_ranks(
    topology: Topology, subject: str, body: Body, folder: Path, *, storage: bool = False
) -> list[list[Event]]:
    """Fork a rank per place, run ``body`` on each over real gloo groups; each rank's events."""
    at_hand(subject)
    fork = multiprocessing.get_context("fork")
    store = str(folder / "store")
    pipes, ranks = [], []
    for rank in range(topology.size):
        parent, child = fork.Pipe(duplex=False)
        process = fork.Process(
            target=_rank, args=(topology, rank, store, subject, storage, body, child)
        )
        process.start()
        child.close()  # so that a rank that dies is heard of at once
        pipes.append(parent)
        ranks.append(process)
    try:
        return [
            pipe.recv() if pipe.poll(RANK_LIMIT_S) else pytest.fail(f"rank {rank} never ended")
            for rank, pipe in enumerate(pipes)
        ]
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _rank(
    topology: Topology,
    rank: int,
    store: str,
    subject: str,
    storage: bool,
    body: Body,
    pipe: Any,
) -> None:
    groups, names = _groups(topology, rank, store)
    clock = Clock()
    recorder = ListRecorder(clock)
    rig = Rig(subject, storage=storage, groups=groups, recorder=recorder, clock=clock)
    Shim(recorder, rank, names).install()
    body(rig)
    pipe.send(recorder.events)
    # Peers may still read from this rank's connections: the parent ends all of them together.
    threading.Event().wait(RANK_LIMIT_S)
    os._exit(0)


def _groups(topology: Topology, rank: int, store: str) -> tuple[Groups, dict[Any, GroupSpec]]:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=topology.size
    )
    # Every rank takes part in the making of every group, whether it is a member or not.
    made = {spec: dist.new_group(list(spec.ranks)) for spec in topology.groups}
    groups = Groups(
        topology,
        rank,
        tp=made.get(topology.tp_group(rank)),
        cp=made.get(topology.cp_group(rank)),
        pp=made.get(topology.pp_group(rank)),
        world=dist.group.WORLD,
    )
    return groups, {made[spec]: spec for spec in made if rank in spec.ranks}


def of_kind(events: list[Event], kind: type[EventT]) -> list[EventT]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def operations(events: list[Event], op: str) -> list[Enter]:
    """The torch.distributed calls of that name."""
    return [event for event in of_kind(events, Enter) if event.op == op]
