"""An index of one RunRecord: per rank and step what it held, did and left. Built once."""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from testbed.analysis.wait_graph import (
    ANY,
    RECVS,
    SENDS,
    Deadlock,
    Node,
    OpenCalls,
    Wait,
    awaited_op,
    is_message,
    prove,
)
from testbed.analysis.wait_graph import waits as all_waits
from testbed.model.events import (
    MODEL,
    Answer,
    Arrived,
    Begin,
    Block,
    Call,
    Complete,
    Dropped,
    End,
    Enter,
    Event,
    Evict,
    Exit,
    Final,
    Fired,
    Group,
    Left,
    Query,
    Raised,
    Request,
    Settled,
    Start,
    Sync,
    Take,
    Touched,
)
from testbed.model.record import RankRecord, RunRecord
from testbed.model.scenario import Scenario
from testbed.model.topology import GroupSpec, Topology, has_tags, told_tag, without_backend

QUEUES = ("write", "load")


NO_TAG = -1
"""Tag of the one pipe that there is between two ranks of a group without tags."""


class Pipe(NamedTuple):
    """The way of a message: group, global ranks of its two ends (source ANY: a receive from any
    source), tag or NO_TAG.
    """

    group: str
    src: int
    dst: int
    tag: int

    def __str__(self) -> str:
        way = f"{self.group} {'any' if self.src == ANY else self.src}->{self.dst}"
        return way if self.tag == NO_TAG else f"{way} tag {told_tag(self.tag)}"


class Op(NamedTuple):
    """One torch.distributed call. returned: the tensor's values after it, None: never returned.
    called: what the loop had called besides the check when it was entered, "" in the check. work: a
    Work came of it, and the operation is over when that is waited for. source: whose message a
    receive from any source took, ANY if that is not known. left: an exception came out of it.
    """

    rank: int
    enter: Enter
    returned: list[int] | None
    called: str = ""
    work: bool = False
    source: int = ANY
    left: bool = False

    @property
    def step(self) -> int:
        """Scheduler step in which it was entered."""
        return self.enter.step

    @property
    def has_step(self) -> bool:
        """Whether its step is its own: a thread besides the main one goes on at its own pace."""
        return self.enter.thread == 0

    @property
    def is_open(self) -> bool:
        """Whether it was neither returned from nor left by an exception."""
        return self.returned is None and not self.left

    @property
    def way(self) -> "Way":
        """The operation, or the one that it waits for."""
        enter = self.enter
        return Way(awaited_op(enter.op), enter.group, enter.ordinal, enter.peer, enter.tag)

    @property
    def is_send(self) -> bool:
        """Whether it sends a message."""
        return self.enter.op in SENDS

    @property
    def is_recv(self) -> bool:
        """Whether it receives a message."""
        return self.enter.op in RECVS

    @property
    def is_collective(self) -> bool:
        """Whether every member of its group has to enter it. A ``wait`` is no operation itself."""
        return not is_message(self.enter.op) and not self.is_wait

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive, or the wait for one."""
        return is_message(self.enter.op)

    @property
    def is_wait(self) -> bool:
        """Whether it waits for an operation that was entered before."""
        return self.enter.op.startswith("wait")

    @property
    def is_model(self) -> bool:
        """Whether it is the model's own traffic, for which the subject does not answer."""
        return self.enter.caller == MODEL

    @property
    def pipe(self) -> Pipe:
        """The way of a send or a receive, or of the one it waits for."""
        return self.way.pipe(self.rank)


class Way(NamedTuple):
    """What makes one operation of a rank known to all events that are about it."""

    op: str
    group: str
    ordinal: int
    peer: int
    tag: int

    @classmethod
    def of(cls, event: Touched | Settled | Dropped) -> "Way":
        """That of the operation which an event is about."""
        return cls(event.op, event.group, event.ordinal, event.peer, event.tag)

    def pipe(self, rank: int) -> Pipe:
        """The pipe of a message that this rank sends or receives."""
        ends = (rank, self.peer) if self.op in SENDS else (self.peer, rank)
        return Pipe(self.group, *ends, self.tag if has_tags(self.group) else NO_TAG)

    def channel(self, rank: int) -> "str | Pipe":
        """The group of a collective, the pipe of a message."""
        return self.pipe(rank) if is_message(self.op) else self.group


class RankStep:
    """One rank's share of one scheduler step. ``end`` is None where it was cut short in it.

    ops: of the main thread; other threads have no step.
    queries / asked: events asked by the check, and by what the loop called besides it. answers: of
    those calls. arrived: requests whose prefetch got its last page. written_back: keys among the
    completes that such a call waited for by itself.
    """

    __slots__ = (
        "answers",
        "arrived",
        "asked",
        "begin",
        "blocks",
        "completes",
        "end",
        "evicts",
        "ops",
        "queries",
        "requests",
        "starts",
        "syncs",
        "takes",
        "written_back",
    )

    def __init__(self) -> None:
        self.begin: Begin | None = None
        self.end: End | None = None
        self.ops: list[Op] = []
        self.starts: list[Start] = []
        self.queries: list[Query] = []
        self.syncs: list[Sync] = []
        self.completes: list[Complete] = []
        self.blocks: list[Block] = []
        self.takes: list[Take] = []
        self.evicts: list[Evict] = []
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.arrived: list[str] = []
        self.asked: list[Query] = []
        self.written_back: list[str] = []

    def completed(self, queue: str) -> list[str]:
        """Keys completed from that ACK queue in this step, in order."""
        return [done.key for done in self.completes if done.queue == queue]

    def taken(self, queue: str) -> int:
        """Number of items taken from that storage queue in this step."""
        return sum(take.queue == queue for take in self.takes)

    def held(self, queue: str) -> list[str]:
        """Keys that the ACK queue held when the step began; none if it did not begin."""
        return [str(key) for key, _ in acks(self.begin, queue)] if self.begin else []


def acks(begin: Begin, queue: str) -> list[list[object]]:
    """The ``[key, ready]`` pairs of one ACK queue, head first."""
    return begin.write if queue == "write" else begin.load


_NOTHING = RankStep()

Standing = Op | Sync | Block
"""What a thread may be unable to get past."""


class RankView:
    """One rank, indexed. ``standing`` is what its main thread never got past, if it waits in
    anything; ``standing_threads`` that of the other threads. ops: of all threads. settled, dropped:
    operations that were found to be over, or whose Work was thrown away (with its step).
    """

    def __init__(self, record: RankRecord) -> None:
        self.record = record
        self.rank = record.rank
        self.steps: dict[int, RankStep] = {}
        self.ops: list[Op] = []
        self.final: Final | None = None
        self.raised: Raised | None = None
        self.fired: list[Fired] = []
        self.touched: list[Touched] = []
        self.groups: dict[str, tuple[int, ...]] = {}
        self.calls: set[str] = set()
        self.standing: Standing | None = None
        self.standing_threads: dict[int, Standing] = {}
        self.settled: dict[Way, Settled] = {}
        self.dropped: dict[Way, Dropped] = {}
        self.step = record.events[-1].step if record.events else -1
        self._read()

    @property
    def done(self) -> bool:
        """Whether the rank came to the end of its loop and left by itself."""
        return self.record.exit == "done"

    def at(self, step: int) -> RankStep:
        """Its share of ``step``, an empty one if it never came there. Not to be changed."""
        return self.steps.get(step, _NOTHING)

    def ended_steps(self) -> Iterator[tuple[int, RankStep]]:
        """The steps it finished, in order."""
        return ((step, share) for step, share in self.steps.items() if share.end is not None)

    def before_its_end(self) -> Iterator[Event]:
        """Its events without the exception that ended it: of a rank that raised while it was being
        stopped, how it stood before.
        """
        events = self.record.events
        ends = self.raised is not None and self.raised.inside
        left = next((one for one in reversed(events) if isinstance(one, Enter | Left)), None)
        for event in events:
            if not isinstance(event, Raised) and not (
                ends and event is left and isinstance(event, Left) and event.thread == 0
            ):
                yield event

    def starts(self) -> Iterator[Start]:
        """Every transfer it enqueued, in order."""
        return (start for share in self.steps.values() for start in share.starts)

    def _read(self) -> None:
        entered: dict[int, list[int]] = {}
        calls = OpenCalls()
        called = ""
        for event in self.record.events:
            share = self.steps.get(event.step)
            if share is None:
                share = self.steps[event.step] = RankStep()
            calls.see(event)
            if isinstance(event, Enter):
                entered.setdefault(event.thread, []).append(len(self.ops))
                within = "" if event.thread else called
                self.ops.append(Op(self.rank, event, None, within))
            elif isinstance(event, Call):
                called = event.call
                self.calls.add(event.call)
            elif isinstance(event, Answer):
                called = ""
                share.answers.append(event)
            elif isinstance(event, Exit | Left):
                self._close(entered.get(event.thread, []), event)
            elif isinstance(event, Sync):
                share.syncs.append(event)
            elif called and isinstance(event, Query):
                share.asked.append(event)
            else:
                self._keep(share, event)
                if called == "write-back" and isinstance(event, Complete):
                    share.written_back.append(event.key)
        self._find_sources()
        for op in self.ops:
            if op.has_step:
                self.steps[op.step].ops.append(op)
        self._stand(calls)

    def _close(self, entered: list[int], event: Exit | Left) -> None:
        if not entered:
            return
        # In older records an operation left by an exception has neither: it stays open beneath.
        place = entered.pop()
        if isinstance(event, Left):
            self.ops[place] = self.ops[place]._replace(left=True)
            return
        self.ops[place] = self.ops[place]._replace(
            returned=event.values, work=event.work, source=event.source
        )

    def _find_sources(self) -> None:
        """The wait of a receive from any source says whose message that took."""
        taken = {
            op.way: op.source
            for op in self.ops
            if op.is_wait and op.enter.peer == ANY and op.source != ANY
        }
        for place, op in enumerate(self.ops if taken else ()):
            if op.is_recv and op.way in taken:
                self.ops[place] = op._replace(source=taken[op.way])

    def _stand(self, calls: OpenCalls) -> None:
        by_event = {id(op.enter): op for op in self.ops}
        for thread, event in calls.open.items():
            at = by_event[id(event)] if isinstance(event, Enter) else event
            if thread:
                self.standing_threads[thread] = at
            else:
                self.standing = at
        if self.standing is None and self.raised is not None and self.raised.inside:
            # The exception came out of it: that is where the rank ended.
            last = next((op for op in reversed(self.ops) if op.has_step), None)
            self.standing = last if last is not None and last.left else None

    def _keep(self, share: RankStep, event: object) -> None:
        if isinstance(event, Begin):
            share.begin = event
        elif isinstance(event, End):
            share.end = event
        elif isinstance(event, Query):
            share.queries.append(event)
        elif isinstance(event, Complete):
            share.completes.append(event)
        elif isinstance(event, Start):
            share.starts.append(event)
        elif isinstance(event, Take):
            share.takes.append(event)
        elif isinstance(event, Evict):
            share.evicts.append(event)
        elif isinstance(event, Request):
            share.requests.append(event)
        elif isinstance(event, Arrived):
            share.arrived.append(event.key)
        elif isinstance(event, Block):
            share.blocks.append(event)
        elif isinstance(event, Fired):
            self.fired.append(event)
        elif isinstance(event, Touched):
            self.touched.append(event)
        elif isinstance(event, Group):
            self.groups[event.name] = tuple(event.ranks)
        elif isinstance(event, Raised):
            self.raised = event
        elif isinstance(event, Settled):
            self.settled[Way.of(event)] = event
        elif isinstance(event, Dropped) and self.final is None:
            self.dropped[Way.of(event)] = event
        elif isinstance(event, Final):
            self.final = event


class View:
    """The whole run. ranks: global rank -> its view, in rank order; a rank may be missing."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        ordered = sorted(record.ranks, key=lambda share: share.rank)
        self.ranks = {share.rank: RankView(share) for share in ordered}
        self._members = {group.name: group.ranks for group in self.topology.groups}
        self._members["world"] = tuple(range(self.topology.size))

    @cached_property
    def waits(self) -> dict[Node, Wait]:
        """Who waits for whom at the end, by rank and thread, but for what is on its way."""
        return all_waits(self._stood, self.topology)

    @cached_property
    def deadlock(self) -> Deadlock | None:
        """The proof of a deadlock, if the record has one."""
        return prove(self._stood, self.topology)

    @cached_property
    def _stood(self) -> dict[int, list[Event]]:
        # What a rank raised while it was being stopped is no part of the standstill.
        return {rank.rank: list(rank.before_its_end()) for rank in self.ranks.values()}

    @property
    def scenario(self) -> Scenario:
        """What was run."""
        return self.record.scenario

    @property
    def topology(self) -> Topology:
        """Where the ranks sit."""
        return self.record.scenario.topology

    @property
    def steps(self) -> range:
        """Every step of the scenario, whether reached or not."""
        return range(self.scenario.steps)

    @property
    def all_done(self) -> bool:
        """Whether every rank of the topology came to the end of its loop."""
        return len(self.ranks) == self.topology.size and all(
            rank.done for rank in self.ranks.values()
        )

    def stage(self, pp: int) -> list[RankView]:
        """The recorded ranks of one pipeline stage."""
        return [self.ranks[rank] for rank in self.topology.stage(pp) if rank in self.ranks]

    def in_stage_groups(self, rank: int) -> tuple[GroupSpec, ...]:
        """The rank's groups of two or more inside its own stage: context-, then tensor-parallel."""
        groups = (self.topology.cp_group(rank), self.topology.tp_group(rank))
        return tuple(self.agreed_over(group) for group in groups if len(group.ranks) > 1)

    def agreed_over(self, group: GroupSpec) -> GroupSpec:
        """The group of the topology as the agreement uses it."""
        return group.on_nccl() if self.scenario.agree_on == "nccl" else group

    def members(self, group: str) -> tuple[int, ...]:
        """Global ranks of a group; for one the topology does not know, those that its first user
        takes for its members, or failing that all that used it.
        """
        known = self._members.get(without_backend(group))
        if known is None:
            known = next(
                (rank.groups[group] for rank in self.ranks.values() if group in rank.groups), None
            )
        if known is None:
            users = (
                rank.rank
                for rank in self.ranks.values()
                if any(op.enter.group == group for op in rank.ops)
            )
            known = self._members[group] = tuple(users)
        return known

    def claimed(self, prefix: str) -> list[str]:
        """What follows ``prefix`` in the claims that the scenario holds against the subject."""
        return [
            claim.removeprefix(prefix) for claim in self.scenario.claims if claim.startswith(prefix)
        ]
