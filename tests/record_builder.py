"""Run records for tests of the oracles: a model of sound protocols, and ways to spoil its records.

``Model(...).record()`` plays the protocol with ideal collectives and writes what real ranks would
have recorded. It is as simple as it can be: one transfer, one node; nothing is evicted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar
from zlib import crc32

from testbed.model.events import (
    Begin,
    Block,
    Complete,
    End,
    Enter,
    Event,
    Exit,
    Final,
    Query,
    Raised,
    Start,
    Sync,
    Synced,
    Take,
)
from testbed.model.record import RankRecord, RunRecord
from testbed.model.scenario import Scenario, Where, select
from testbed.model.topology import Topology

Protocol = Literal["separate", "batched", "fused"]
PIPE_TAG = 77
STORAGE = ("prefetch", "backup", "release")
POOL_PAGES = 64
NEVER = 1 << 30
E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Transfer:
    """``ready`` steps after ``at`` its event is ready (None: never); ``slow``: other steps on some
    ranks. script: how its Start is recorded, from its readiness by default."""

    queue: str
    key: str
    at: int = 0
    ready: int | None = 1
    on: Where = "all"
    slow: Mapping[int, int | None] = field(default_factory=dict)
    script: str = ""


@dataclass(frozen=True)
class Item:
    """An item that comes into a storage queue at the start of step ``at``."""

    queue: str
    at: int = 0
    on: Where = "all"


def write(key: str, at: int = 0, ready: int | None = 1, **more: Any) -> Transfer:
    """A write."""
    return Transfer("write", key, at, ready, **more)


def load(key: str, at: int = 0, ready: int | None = 1, **more: Any) -> Transfer:
    """A load."""
    return Transfer("load", key, at, ready, **more)


class Rank:
    """One rank of the model."""

    def __init__(self, number: int, has_controller: bool) -> None:
        self.number = number
        self.has_controller = has_controller
        self.events: list[Event] = []
        self.queues: dict[str, list[str]] = {"write": [], "load": []}
        self.due: dict[str, int] = {}
        self.storage = dict.fromkeys(STORAGE, 0) if has_controller else {}
        self.ordinals: dict[Any, int] = {}
        self.usable = 0
        self.sends = 0
        self.broken: Literal["", "raised", "hung"] = ""

    def prefix(self, queue: str, step: int) -> int:
        """Length of the ready prefix."""
        held = self.queues[queue]
        return next((i for i, key in enumerate(held) if self.due[key] > step), len(held))

    def ordinal(self, channel: Any) -> int:
        """The next one of that channel."""
        self.ordinals[channel] = self.ordinals.get(channel, -1) + 1
        return self.ordinals[channel]


class Model:
    """A run of a sound protocol. without: ranks that have no controller."""

    def __init__(
        self,
        topology: str = "pp2tp2",
        protocol: Protocol = "batched",
        *,
        steps: int = 5,
        transfers: Sequence[Transfer] = (),
        items: Sequence[Item] = (),
        storage: bool = False,
        without: Iterable[int] = (),
        **scenario: Any,
    ) -> None:
        self.topology = Topology.parse(topology)
        self.protocol = protocol
        self.transfers = transfers
        self.items = items
        self.scenario = Scenario(
            name="model",
            topology=self.topology,
            workload={"kind": "scripted"},
            subject=protocol,
            steps=steps,
            storage=storage,
            **scenario,
        )
        lacking = set(without)
        self.ranks = [Rank(rank, rank not in lacking) for rank in range(self.topology.size)]

    def record(self) -> RunRecord:
        """Play it."""
        for step in range(self.scenario.steps):
            self._step(step)
            if any(rank.broken for rank in self.ranks):
                break
        broken = {rank.broken for rank in self.ranks} - {""}
        if not broken:
            for rank in self.ranks:
                self._final(rank)
        return RunRecord(
            scenario=self.scenario,
            ranks=tuple(self._rank_record(rank, bool(broken)) for rank in self.ranks),
            ended="broken" if "raised" in broken else "deadline" if broken else "finished",
            wall_ms=1.0,
            promises={
                "budget": self.protocol,
                "same-site": True,
                "stage-local": self.protocol != "fused",
            },
        )

    def _rank_record(self, rank: Rank, cut: bool) -> RankRecord:
        exit_kind: Any = "raised" if rank.broken == "raised" else "stopped" if cut else "done"
        return RankRecord(rank.number, exit_kind, tuple(rank.events))

    # One step

    def _step(self, step: int) -> None:
        for rank in self.ranks:
            self._begin(rank, step)
        before = {rank.number: dict(rank.storage) for rank in self.ranks}
        if self.topology.pp > 1 and self.protocol == "separate":
            self._agree(step, "check>writing_check>agree", ("write",))
            self._agree(step, "check>loading_check>agree", ("load",))
        else:
            self._agree(step, "check>agree", ("write", "load"))
        if self.scenario.storage:
            self._drain(step, before)
        for rank in self.ranks:
            if not rank.broken:
                self._end(rank, step)

    def _begin(self, rank: Rank, step: int) -> None:
        for one in self.transfers:
            if one.at == step and rank.has_controller and self._on(one.on, rank):
                after = one.slow.get(rank.number, one.ready)
                rank.due[one.key] = NEVER if after is None else step + after
                rank.queues[one.queue].append(one.key)
                script = "never" if after is None else f"steps:{step + after}"
                rank.events.append(Start(step, 0, one.queue, one.key, one.script or script))
        for item in self.items:
            if item.at == step and rank.has_controller and self._on(item.on, rank):
                rank.storage[item.queue] = rank.storage.get(item.queue, 0) + 1
        held = [
            [[key, rank.due[key] <= step] for key in rank.queues[queue]]
            for queue in ("write", "load")
        ]
        storage = dict(rank.storage) if self.scenario.storage else {}
        rank.events.append(Begin(step, 0, held[0], held[1], storage))
        if rank.sends:
            pipe = (self.topology.pp_group(rank.number).name, self._below(rank))
            for _ in range(rank.sends):
                enter = Enter(
                    step, 0, "wait", pipe[0], 0, pipe[1], PIPE_TAG, "", "int32", 2, [], ""
                )
                rank.events += [enter, Exit(step, 0, [])]
            rank.sends = 0

    def _on(self, where: Where, rank: Rank) -> bool:
        return rank.number in select(where, self.topology)

    def _below(self, rank: Rank) -> int:
        at = self.topology.coords(rank.number)
        return self.topology.rank(at.pp + 1, at.cp, at.tp)

    def _agree(self, step: int, caller: str, queues: tuple[str, ...]) -> None:
        leaders = [self.ranks[rank] for rank in self.topology.leaders]
        counts = [min(rank.prefix(queue, step) for rank in leaders) for queue in queues]
        for rank in leaders:
            for queue in queues:
                asked = rank.queues[queue][: rank.prefix(queue, step) + 1]
                rank.events += [Query(step, 0, key, rank.due[key] <= step) for key in asked]
            own = [rank.prefix(queue, step) for queue in queues]
            self._reduce(rank, step, caller, own, counts)
        for rank in self.ranks:
            if not rank.broken:
                self._pass_down(rank, step, caller, counts)
        for rank in self.ranks:
            for queue, count in zip(queues, counts, strict=True):
                if rank.has_controller and not rank.broken:
                    self._complete(rank, step, queue, count)

    def _reduce(
        self, rank: Rank, step: int, caller: str, own: list[int], counts: list[int]
    ) -> None:
        for spec in (self.topology.cp_group(rank.number), self.topology.tp_group(rank.number)):
            if len(spec.ranks) > 1:
                ordinal = rank.ordinal(spec.name)
                what = (spec.name, ordinal, -1, -1, "MIN", "int32", len(own), own)
                rank.events.append(Enter(step, 0, "all_reduce", *what, f"{caller}>reduce"))
                rank.events.append(Exit(step, 0, counts))

    def _pass_down(self, rank: Rank, step: int, caller: str, counts: list[int]) -> None:
        at = self.topology.coords(rank.number)
        group = self.topology.pp_group(rank.number).name
        size, chain = len(counts), f"{caller}>pass_down"
        if at.pp > 0:
            above = self.topology.rank(at.pp - 1, at.cp, at.tp)
            ordinal = rank.ordinal((group, above, rank.number))
            what = (group, ordinal, above, PIPE_TAG, "", "int32", size, [0] * size, chain)
            rank.events += [Enter(step, 0, "recv", *what), Exit(step, 0, counts)]
        if at.pp + 1 < self.topology.pp:
            below = self._below(rank)
            ordinal = rank.ordinal((group, rank.number, below))
            what = (group, ordinal, below, PIPE_TAG, "", "int32", size, counts, chain)
            rank.events += [Enter(step, 0, "isend", *what), Exit(step, 0, counts)]
            rank.sends += 1

    def _complete(self, rank: Rank, step: int, queue: str, count: int) -> None:
        for _ in range(count):
            if not rank.queues[queue]:
                text = "pop from empty list"
                rank.events.append(Raised(step, 0, "IndexError", text, f"IndexError: {text}", ""))
                rank.broken = "raised"
                return
            key = rank.queues[queue][0]
            early = max(0, rank.due[key] - step)
            never = rank.due[key] == NEVER
            rank.events.append(Sync(step, 0, key, -1 if never else early))
            if never:
                rank.broken = "hung"
                return
            rank.queues[queue].pop(0)
            rank.usable += crc32(key.encode())
            rank.events += [Synced(step, 0, key), Complete(step, 0, queue, key, True, 0)]

    def _drain(self, step: int, before: Mapping[int, Mapping[str, int]]) -> None:
        for stage in range(self.topology.pp):
            ranks = [self.ranks[rank] for rank in self.topology.stage(stage)]
            source = 0 if self.protocol == "fused" else stage
            counted = [before[rank] for rank in self.topology.stage(source)]
            names = list(dict.fromkeys(name for sizes in counted for name in sizes))
            counts = [min(sizes.get(name, 0) for sizes in counted) for name in names]
            for rank in ranks:
                if rank.broken:
                    continue
                if self.topology.pp > 1 and self.protocol != "fused":
                    self._reduce(rank, step, "check>check_storage", counts, counts)
                if rank.has_controller:
                    self._take(rank, step, dict(zip(names, counts, strict=True)))

    def _take(self, rank: Rank, step: int, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            for _ in range(count):
                if not rank.storage.get(name, 0):
                    rank.events.append(Block(step, 0, name))
                    rank.broken = "hung"
                    return
                rank.storage[name] -= 1
                rank.events.append(Take(step, 0, name, f"{name}{step}"))

    def _end(self, rank: Rank, step: int) -> None:
        writes, loads = list(rank.queues["write"]), list(rank.queues["load"])
        storage = dict(rank.storage) if self.scenario.storage else {}
        lists = (writes, loads, list(writes), list(loads))
        locks = [len(writes) + len(loads), len(loads)]
        rank.events.append(End(step, 0, *lists, storage, rank.sends, locks, rank.usable))

    def _final(self, rank: Rank) -> None:
        writes, loads = list(rank.queues["write"]), list(rank.queues["load"])
        flying = {"write": len(writes), "load": len(loads)}
        device, host = (
            {
                "total": POOL_PAGES,
                "free": POOL_PAGES - 10 - flying[queue],
                "tree": 10,
                "flight": flying[queue],
            }
            for queue in ("load", "write")
        )
        locks = [len(writes) + len(loads), len(loads)]
        pending = {"write": writes, "load": loads, "backup": [], "prefetch": []}
        rank.events.append(
            Final(self.scenario.steps - 1, 0, device, host, locks, locks, pending, 0)
        )


# Ways to spoil a record


def with_events(
    record: RunRecord, rank: int, edit: Callable[[list[Event]], list[Event]]
) -> RunRecord:
    """The record with one rank's events edited."""
    return with_rank(record, rank, events=tuple(edit(list(record.ranks[rank].events))))


def with_rank(record: RunRecord, rank: int, **changes: Any) -> RunRecord:
    """The record with some fields of one rank's share replaced."""
    ranks = list(record.ranks)
    ranks[rank] = replace(ranks[rank], **changes)
    return replace(record, ranks=tuple(ranks))


def changed(
    record: RunRecord,
    rank: int,
    kind: type[E],
    step: int,
    change: Callable[[E], Event],
    nth: int = 0,
) -> RunRecord:
    """The record with the nth event of that kind in that step of that rank changed."""

    def edit(events: list[Event]) -> list[Event]:
        places = [i for i, one in enumerate(events) if isinstance(one, kind) and one.step == step]
        event = events[places[nth]]
        assert isinstance(event, kind)
        events[places[nth]] = change(event)
        return events

    return with_events(record, rank, edit)


def inserted(record: RunRecord, rank: int, step: int, *events: Event) -> RunRecord:
    """The record with events added to one rank's step, right before its end."""

    def edit(old: list[Event]) -> list[Event]:
        place = next(i for i, one in enumerate(old) if isinstance(one, End) and one.step == step)
        return [*old[:place], *events, *old[place:]]

    return with_events(record, rank, edit)


def without(record: RunRecord, rank: int, drop: Callable[[Event], bool]) -> RunRecord:
    """The record with some of one rank's events gone."""
    return with_events(record, rank, lambda events: [one for one in events if not drop(one)])


def cut(record: RunRecord, rank: int, until: Callable[[Event], bool], **share: Any) -> RunRecord:
    """The record in which one rank's events end with the first one that ``until`` holds for."""

    def edit(events: list[Event]) -> list[Event]:
        return events[: next(i for i, one in enumerate(events) if until(one)) + 1]

    return with_rank(with_events(record, rank, edit), rank, **share)
