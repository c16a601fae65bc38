"""What a step of the check costs with nothing to complete, three ways, block by block.

``raw``: its bare operations. ``plain``: the subject, unrecorded. ``recorded``: the subject as cases
run it, with the recorder beneath. The row of all subjects three ways is gone through once a round,
A B C A B C, so that whatever the machine does meanwhile meets all of them alike. Every step is
timed by itself; each block starts with all ranks together and with steps that are not counted.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.bench.plans import PLAIN, RAW, RECORDED, CostPlan
from testbed.bench.ranks import recording
from testbed.bench.ranks.place import Place
from testbed.bench.ranks.raw import Raw, dtype_of
from testbed.model.events import Enter, Event
from testbed.rank.assemble import RankContext
from testbed.recorder.log import SharedLog, entries
from testbed.recorder.recorder import LogRecorder, Recorder, event_of
from testbed.recorder.shim import Functions, Shim
from testbed.scripted_events import Clock

_LEARNING_STEPS, _STEADY = 6, 3
_LOG_BYTES_PER_STEP = 8192


@dataclass(frozen=True)
class _Way:
    """One subject one way. functions: what torch.distributed is while it runs."""

    name: str
    functions: Functions
    step: Callable[[], None]
    drain: Callable[[], None]


def figures(plan: CostPlan, place: Place) -> Iterator[dict[str, Any]]:
    """First ``{"ops": {subject: ...}}``, then a round at a time ``{"ns": {"subject/way": [...]},
    "cpu_ns": {"subject/way": n}}``: nanoseconds of each counted step, and of processor time that
    one of them took on average, in all threads of the rank."""
    ways: list[_Way] = []
    operations: dict[str, dict[str, float]] = {}
    logs = []
    for subject in plan.subjects:
        clock = Clock()
        log = SharedLog(_LOG_BYTES_PER_STEP * _steps(plan))
        logs.append((subject, log))
        recorder = LogRecorder(log, clock)
        recorded = Shim(recorder, place.rank, place.names).replacements()
        bare = recording.functions(recorded)
        context = _waiting(plan, place, subject, recorder, clock)
        place.meet()
        recording.put(recorded)
        events = _learn(context, clock, log)
        recording.put(bare)
        place.meet()
        operations[subject] = _operations(events)
        raw = _raw(events, place)
        plain = _waiting(plan, place, subject, None, None)
        every = {
            RAW: _Way(f"{subject}/{RAW}", bare, raw.step, raw.drain),
            PLAIN: _subject_way(f"{subject}/{PLAIN}", bare, plain),
            RECORDED: _subject_way(f"{subject}/{RECORDED}", recorded, context),
        }
        ways += [every[way] for way in plan.ways]
    yield {"ops": operations}
    for _ in range(plan.rounds):
        blocks = {way.name: _block(way, plan, place) for way in ways}
        yield {
            "ns": {name: taken for name, (taken, _) in blocks.items()},
            "cpu_ns": {name: cpu for name, (_, cpu) in blocks.items()},
        }
    for subject, log in logs:
        if log.dropped:
            raise RuntimeError(f"the log of {subject} was too small: {log.dropped} events dropped")


def _steps(plan: CostPlan) -> int:
    return _LEARNING_STEPS + plan.rounds * (plan.warmup + plan.block)


def _waiting(
    plan: CostPlan, place: Place, subject: str, recorder: Recorder | None, clock: Clock | None
) -> RankContext:
    """The subject with ACKs in both queues whose events never fire."""
    waiting = [{"at": 0, "ready_after": None}] * plan.pending
    workload = {"kind": "scripted", "writes": waiting, "loads": waiting}
    context = place.subject(subject, recorder, clock, workload=workload)
    context.begin_step()
    context.workload.step()
    return context


def _subject_way(name: str, functions: Functions, context: RankContext) -> _Way:
    return _Way(name, functions, context.subject.check_hicache_events, context.subject.drain_sends)


def _block(way: _Way, plan: CostPlan, place: Place) -> tuple[list[int], int]:
    now, step = time.perf_counter_ns, way.step
    place.meet()
    recording.put(way.functions)
    for _ in range(plan.warmup):
        step()
    taken: list[int] = []
    cpu_began = time.process_time_ns()
    for _ in range(plan.block):
        began = now()
        step()
        taken.append(now() - began)
    cpu = (time.process_time_ns() - cpu_began) // plan.block
    way.drain()
    return taken, cpu


def _learn(context: RankContext, clock: Clock, log: SharedLog) -> Sequence[Event]:
    """Events of a few recorded steps, which are the clock's 1 and on."""
    for _ in range(_LEARNING_STEPS):
        clock.tick()
        context.subject.check_hicache_events()
    context.subject.drain_sends()
    return [event_of(entry) for entry in entries(log.committed())]


def _raw(events: Sequence[Event], place: Place) -> Raw:
    groups = {spec.name: group for group, spec in place.names.items() if group is not None}
    step = [event for event in events if event.step == _STEADY]
    after = [event for event in events if event.step > _STEADY]
    return Raw(step, after, groups, place.groups.device)


def _operations(events: Sequence[Event]) -> dict[str, float]:
    """Per step, of this rank: operations entered (waits apart), messages sent, collectives, and the
    bytes that both were given."""
    step = [event for event in events if isinstance(event, Enter) and event.step == _STEADY]
    begun = [event for event in step if not event.op.startswith("wait")]
    kinds = Counter(_kind(event) for event in begun)
    given = [event for event in begun if _kind(event) != "received"]
    return {
        "ops": len(begun),
        "sent": kinds["sent"],
        "received": kinds["received"],
        "collectives": kinds["collective"],
        "bytes": sum(event.numel * dtype_of(event).itemsize for event in given),
    }


def _kind(event: Enter) -> str:
    if event.op in ("send", "isend"):
        return "sent"
    return "received" if event.op in ("recv", "irecv") else "collective"
