"""Faults on one rank: that they take effect, where and when they should, and say so."""

from typing import Any

import pytest

from testbed import faults
from testbed.errors import BadInput
from testbed.events import Clock
from testbed.protocols import Groups
from testbed.scenario import Scenario
from testbed.topology import Topology
from testbed.trace.events import Complete, Event, Fired, Request, Start, Take
from testbed.trace.recorder import ListRecorder
from testbed.workloads.assemble import RankContext, assemble

TRANSFERS = [{"at": at, "ready_after": 1} for at in range(3)]
SCRIPT = {"kind": "scripted", "writes": TRANSFERS, "loads": TRANSFERS}


def rank_with(
    *listed: dict[str, Any], workload: dict[str, Any] = SCRIPT, storage: bool = False
) -> tuple[RankContext, list[Event]]:
    case = Scenario(
        name="case",
        topology=Topology(),
        workload=workload,
        faults=list(listed),
        storage=storage,
    )
    clock = Clock()
    recorder = ListRecorder(clock)
    return assemble(case, 0, clock, recorder, Groups(case.topology, 0)), recorder.events


def run(*listed: dict[str, Any], **more: Any) -> list[Event]:
    context, events = rank_with(*listed, **more)
    for _ in range(context.bench.scenario.steps):
        context.run_step()
    context.finish()
    return events


def completed(events: list[Event]) -> dict[str, int]:
    return {event.key: event.step for event in events if isinstance(event, Complete)}


def fired(events: list[Event]) -> list[tuple[int, str, str]]:
    return [event[2:] for event in events if isinstance(event, Fired)]


SOUND = {"w0": 1, "w1": 2, "w2": 3, "l0": 1, "l1": 2, "l2": 3}


def test_without_a_controller_nothing_is_enqueued_but_all_is_computed() -> None:
    prefill = {"kind": "prefill", "lengths": [64], "requests": 4}
    events = run({"kind": "no-controller"}, workload=prefill)
    assert fired(events) == [(0, "no-controller", "no controller")]
    assert not any(isinstance(event, Start) for event in events)
    assert sum(isinstance(event, Request) for event in events) == 4


def test_a_fault_of_other_ranks_leaves_this_one_alone() -> None:
    events = run({"kind": "no-controller", "on": {"rank": 1}})
    assert fired(events) == []
    assert completed(events) == SOUND


def test_an_empty_queue_refuses_its_transfers_and_no_others() -> None:
    events = run({"kind": "empty-queue", "queue": "write"})
    assert completed(events) == {"l0": 1, "l1": 2, "l2": 3}
    assert fired(events)[0] == (0, "empty-queue", "write w0 refused")


def test_a_fault_holds_only_in_its_steps() -> None:
    events = run({"kind": "empty-queue", "queue": "load", "from_step": 1, "until_step": 2})
    assert completed(events) == {key: step for key, step in SOUND.items() if key != "l1"}


def test_slow_events_are_late_by_their_steps() -> None:
    events = run({"kind": "slow-events", "steps": 2, "queue": "write"})
    assert completed(events) == SOUND | {"w0": 3, "w1": 4, "w2": 5}
    assert fired(events)[0] == (0, "slow-events", "write w0 +2 steps")


def test_events_can_be_faster_but_not_before_they_start() -> None:
    events = run({"kind": "slow-events", "steps": -5})
    assert completed(events) == {"w0": 0, "w1": 1, "w2": 2, "l0": 0, "l1": 1, "l2": 2}


def test_slow_events_in_milliseconds_are_told_as_such() -> None:
    events = run({"kind": "slow-events", "ms": 0, "queue": "load"})
    starts = {event.key: event.ready for event in events if isinstance(event, Start)}
    assert (starts["w0"], starts["l0"]) == ("steps:1", "ms:0")


def test_backups_can_be_slow_too() -> None:
    fault = {"kind": "slow-events", "steps": 2, "queue": "backup"}
    events = run(fault, workload={"kind": "scripted", "writes": [{}]}, storage=True)
    assert [event.step for event in events if isinstance(event, Take)] == [4]
    assert len(fired(events)) == 1


def test_one_transfer_alone_can_never_be_ready() -> None:
    events = run({"kind": "never-ready", "queue": "write", "nth": 1})
    assert completed(events) == {"w0": 1, "l0": 1, "l1": 2, "l2": 3}
    assert fired(events) == [(0, "never-ready", "write w1 never")]


def test_a_sick_device_raises_what_cuda_raises() -> None:
    context, events = rank_with({"kind": "query-error", "queue": "load", "nth": 0})
    with pytest.raises(RuntimeError, match="CUDA error: an illegal memory access"):
        context.run_step()
    assert fired(events) == [(0, "query-error", "load l0 error")]


def test_faults_keep_their_place_in_the_list() -> None:
    events = run(
        {"kind": "empty-queue", "queue": "write"},
        {"kind": "slow-events", "steps": 1, "queue": "load"},
    )
    assert {index for index, _, _ in fired(events)} == {0, 1}


def test_every_kind_is_listed_with_what_it_does() -> None:
    assert set(faults.available()) == {
        "no-controller",
        "empty-queue",
        "slow-events",
        "never-ready",
        "query-error",
    }
    assert all(faults.available().values())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r"faults\[0\]\.kind is None"),
        ({"kind": "gremlin"}, r"faults\[0\]\.kind is 'gremlin'"),
        ({"kind": "empty-queue", "que": "write"}, "unknown field `que`"),
        ({"kind": "empty-queue", "queue": "both ends"}, "queue"),
        ({"kind": "empty-queue", "on": {"dp": 1}}, "unknown key 'dp'"),
        ({"kind": "empty-queue", "from_step": 3, "until_step": 3}, "holds in no step"),
        ({"kind": "no-controller", "from_step": 3}, "unknown field `from_step`"),
        ({"kind": "slow-events"}, "exactly one of steps and ms"),
        ({"kind": "slow-events", "steps": 1, "ms": 1}, "exactly one of steps and ms"),
        ({"kind": "slow-events", "ms": 1, "queue": "backup"}, "not for backup"),
    ],
)
def test_a_bad_fault_is_refused_by_place_and_key(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        faults.parse([given])
