"""Faults on one rank: that they take effect, where and when they should, and say so."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed import faults, workloads
from testbed.faults.helper import fork_helper, gone
from testbed.model.errors import BadInput
from testbed.model.events import Begin, Complete, Event, Evict, Final, Fired, Request, Start, Take
from testbed.model.scenario import Scenario, Sidecar, Sizes
from testbed.model.topology import Topology
from testbed.protocols import Groups
from testbed.rank.assemble import RankContext, assemble
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock
from tests.rig import at_hand

TRANSFERS = [{"at": at, "ready_after": 1} for at in range(3)]
SCRIPT = {"kind": "scripted", "writes": TRANSFERS, "loads": TRANSFERS}


def rank_with(
    *listed: dict[str, Any], workload: dict[str, Any] = SCRIPT, **more: Any
) -> tuple[RankContext, list[Event]]:
    case = Scenario(
        name="case", topology=Topology(), workload=workload, faults=list(listed), **more
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


def rounds(*listed: dict[str, Any]) -> list[int]:
    """The step of every round of the check that the rank makes."""
    context, _ = rank_with(*listed)
    made: list[int] = []
    check = context.subject.check_hicache_events

    def counted() -> None:
        made.append(context.bench.clock.step)
        check()

    context.subject.check_hicache_events = counted  # type: ignore[method-assign]
    for _ in range(context.bench.scenario.steps):
        context.run_step()
    context.finish()
    return made


EVERY_STEP = [0, 1, 2, 3, 4, 5, 6, 7]


def test_an_ack_that_is_overtaken_keeps_the_later_ones_back() -> None:
    events = run({"kind": "out-of-order", "queue": "write", "nth": 0, "steps": 3})
    assert fired(events) == [
        (0, "out-of-order", "write w0 held back until step 4"),
        (0, "out-of-order", "write w1 ready in step 2, w0 before it in step 4"),
    ]
    assert completed(events) == SOUND | {"w0": 4, "w1": 4, "w2": 4}


def test_a_transfer_is_made_fast_enough_to_overtake() -> None:
    writes = [{"at": 0, "ready_after": 1}, {"at": 0, "ready_after": 9}]
    events = run(
        {"kind": "out-of-order", "steps": 1}, workload={"kind": "scripted", "writes": writes}
    )
    starts = [event.ready for event in events if isinstance(event, Start)]
    assert starts == ["steps:2", "steps:1"]
    assert len(fired(events)) == 2


def test_nothing_overtakes_what_is_ready_already_but_that_it_was_held_back_is_told() -> None:
    writes = [{"at": 0, "ready_after": 0}, {"at": 3, "ready_after": 0}]
    events = run(
        {"kind": "out-of-order", "steps": 1}, workload={"kind": "scripted", "writes": writes}
    )
    assert fired(events) == [(0, "out-of-order", "write w0 held back until step 1")]


def test_a_failed_host_allocation_costs_a_write() -> None:
    events = run({"kind": "alloc-failure", "nth": 1})
    assert completed(events) == {key: step for key, step in SOUND.items() if key != "w1"}
    assert fired(events) == [(0, "alloc-failure", "host allocation 1 of 2 pages refused")]


def test_a_failed_device_allocation_costs_a_load_or_what_was_to_be_computed() -> None:
    fault = {"kind": "alloc-failure", "pool": "device"}
    events = run({**fault, "from_step": 1, "until_step": 2})
    assert completed(events) == {key: step for key, step in SOUND.items() if key[1] != "1"}
    assert len(fired(events)) == 2


def test_a_smaller_pool_is_felt_when_its_pages_are_missed() -> None:
    writes = [{"at": at, "ready_after": 9} for at in range(3)]
    events = run(
        {"kind": "capacity", "host_pages": 5, "until_step": 4},
        workload={"kind": "scripted", "writes": [*writes, {"at": 5, "ready_after": 9}]},
        sizes=Sizes(host_pages=8),
        steps=12,
    )
    assert fired(events) == [(0, "capacity", "host pool of 5 pages lacks 1")]
    assert [event.key for event in events if isinstance(event, Start)] == ["w0", "w1", "w3"]
    (final,) = (event for event in events if isinstance(event, Final))
    assert sum(final.host[part] for part in ("free", "tree", "flight")) == final.host["total"] == 8


FETCH = {"kind": "scripted", "prefetches": [{"at": 1}]}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "alloc-failure"}, "host allocation 0 of 2 pages refused"),
        ({"kind": "capacity", "host_pages": 3}, "host pool of 3 pages lacks 1"),
    ],
)
@pytest.mark.parametrize("subject", ["batched", "sglang==0.5.16", "sglang==0.5.23"])
def test_a_prefetch_without_host_pages_fires_the_fault_that_took_them(
    subject: str, fault: dict[str, Any], told: str
) -> None:
    events = run(
        fault, subject=at_hand(subject), workload=FETCH, storage=True, sizes=Sizes(host_pages=8)
    )
    assert (0, fault["kind"], told) in fired(events)


def test_a_prefetch_with_host_pages_fires_nothing() -> None:
    fault = {"kind": "capacity", "host_pages": 7}
    assert fired(run(fault, workload=FETCH, storage=True, sizes=Sizes(host_pages=8))) == []


def test_a_smaller_pool_is_felt_by_a_subject_that_looks_at_it() -> None:
    fault = {"kind": "capacity", "host_pages": 9, "until_step": 1}
    events = run(fault, subject="bug:local-free-space", sizes=Sizes(host_pages=12))
    (looked, *_) = fired(events)
    assert looked[2].startswith("host pool is seen to have 9 pages")


def test_a_capacity_that_never_matters_does_not_fire() -> None:
    assert fired(run({"kind": "capacity", "device_pages": 60})) == []


def test_an_extra_pool_has_a_page_to_release_in_each_step() -> None:
    events = run(
        {"kind": "extra-pool", "name": "swa", "from_step": 1, "until_step": 3}, storage=True
    )
    taken = [event.key for event in events if isinstance(event, Take) and "swa" in event.queue]
    assert taken == ["swa1", "swa2"]
    assert [event.step for event in events if isinstance(event, Fired)] == [1, 2]


def test_rounds_are_left_out_added_and_put_off() -> None:
    window = {"from_step": 2, "until_step": 4}
    assert rounds({"kind": "skip-sync", **window}) == [0, 1, 4, 5, 6, 7]
    assert rounds({"kind": "extra-sync", **window}) == [0, 1, 2, 2, 3, 3, 4, 5, 6, 7]
    assert rounds({"kind": "late", "steps": 3, **window}) == [0, 1, 4, 5, 5, 6, 6, 7]
    assert rounds({"kind": "late", "ms": 0.1, **window}) == EVERY_STEP


def test_a_round_that_is_put_off_is_made_in_the_last_step_at_the_latest() -> None:
    assert rounds({"kind": "late", "steps": 9, "from_step": 6}) == [0, 1, 2, 3, 4, 5, 7, 7]


def test_faults_on_rounds_add_up() -> None:
    late = {"kind": "late", "steps": 1, "from_step": 2, "until_step": 3}
    extra = {"kind": "extra-sync", "from_step": 2, "until_step": 3}
    assert rounds(extra, late) == [0, 1, 3, 3, 3, 4, 5, 6, 7]
    assert rounds(late, extra) == [0, 1, 2, 3, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", ["skip-sync", "extra-sync"])
def test_a_changed_number_of_rounds_is_told_in_its_steps_only(kind: str) -> None:
    events = run({"kind": kind, "from_step": 2, "until_step": 4})
    assert [event.step for event in events if isinstance(event, Fired)] == [2, 3]


def test_a_late_round_is_told_in_its_steps_only() -> None:
    events = run({"kind": "late", "ms": 0.1, "from_step": 2, "until_step": 4})
    assert fired(events) == [(0, "late", "round 0.1 ms late")] * 2


def test_of_two_nodes_of_one_step_the_later_one_is_evicted_first() -> None:
    prefill = {
        "kind": "prefill",
        "lengths": [48],
        "requests": 8,
        "per_step": 2,
        "shared_prefix": 0,
    }
    sizes = Sizes(device_pages=12)

    def evicted(events: list[Event]) -> list[str]:
        return [key for event in events if isinstance(event, Evict) for key in event.keys]

    exact = run(workload=prefill, sizes=sizes)
    tied = run({"kind": "tie-break"}, workload=prefill, sizes=sizes)
    # Told only where it made a difference: for the second of a pair there is no other left.
    assert len(fired(tied)) == len(evicted(tied)) / 2 > 0
    assert evicted(tied)[:2] == evicted(exact)[1::-1]


def test_without_ties_an_order_of_ties_does_not_fire() -> None:
    prefill = {"kind": "prefill", "lengths": [48], "requests": 8, "shared_prefix": 0}
    assert fired(run({"kind": "tie-break"}, workload=prefill, sizes=Sizes(device_pages=12))) == []


@pytest.mark.parametrize("when", ["begin", "end", "exit"])
def test_an_exception_comes_at_its_moment(when: str) -> None:
    context, events = rank_with({"kind": "raise", "when": when, "from_step": 3}, steps=4)

    def live() -> None:
        for _ in range(4):
            context.run_step()
        context.finish()

    with pytest.raises(RuntimeError, match="raised by the fault"):
        live()
    kinds = [type(event) for event in events if event.step == 3]
    assert kinds[-1] is Fired
    assert (Begin in kinds, Final in kinds) == (when != "begin", when == "exit")


def test_an_exception_inside_an_operation_waits_for_that_operation() -> None:
    context, events = rank_with({"kind": "raise", "inside": "all_reduce", "from_step": 1})
    (inside,) = context.bench.hooks.inside
    inside("all_reduce")
    context.begin_step()
    context.begin_step()
    inside("isend")
    with pytest.raises(RuntimeError, match="raised by the fault"):
        inside("all_reduce")
    assert fired(events) == [(0, "raise", "inside all_reduce")]


def test_a_killed_rank_dies_by_its_signal_and_has_said_so() -> None:
    context, events = rank_with({"kind": "kill", "signal": "SIGTERM", "from_step": 1})
    context.begin_step()

    def fate(say: Callable[[object], None]) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the session of tests handles it
        context.bench.recorder.add = lambda kind, *fields: say(fields)  # type: ignore[method-assign]
        context.begin_step()

    assert forked(fate) == (-signal.SIGTERM, [(0, "kill", "SIGTERM at the begin")])
    assert events == []


def test_a_paused_rank_is_stopped_and_goes_on() -> None:
    context, _ = rank_with({"kind": "pause", "ms": 250, "until_step": 1})
    pid = os.fork()
    if pid == 0:
        context.begin_step()
        os._exit(0)

    seen: list[int] = []
    while not seen or not (os.WIFEXITED(seen[-1]) or os.WIFSIGNALED(seen[-1])):
        seen.append(os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)[1])

    assert [os.WIFSTOPPED(seen[0]), os.WIFCONTINUED(seen[1])] == [True, True]
    assert seen[2:] == [0]


def test_stolen_cores_are_given_back_at_the_end_of_the_fault_and_of_the_loop() -> None:
    def fate(until_step: int | None) -> Callable[[Callable[[object], None]], None]:
        fault = {"kind": "cpu-steal", "spinners": 2, "until_step": until_step}

        def live(say: Callable[[object], None]) -> None:
            context, events = rank_with(fault)
            context.run_step()
            say(len(children()))
            context.run_step()
            say(len(children()))
            context.finish()
            say((len(children()), fired(events)))

        return live

    told = [(0, "cpu-steal", "2 spinning")]
    assert forked(fate(1)) == (0, [2, 0, (0, told)])
    assert forked(fate(None)) == (0, [2, 2, (0, told)])


def test_a_helper_ends_with_its_rank() -> None:
    def fate(say: Callable[[object], None]) -> None:
        say(fork_helper(lambda rank_fd: gone(rank_fd, 600)))

    _, (pid,) = forked(fate)
    assert isinstance(pid, int)
    with contextlib.suppress(ProcessLookupError):  # gone already
        helper = os.pidfd_open(pid)
        assert gone(helper, 60)
        os.close(helper)


def children() -> list[str]:
    """Processes that this one has started and not waited for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def forked(live: Callable[[Callable[[object], None]], None]) -> tuple[int, list[object]]:
    """Run ``live(say)`` in a process of its own: its exit code, below 0 a signal; what it said."""
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            live(theirs.send)
            os._exit(0)
        finally:
            os._exit(1)
    theirs.close()
    said = []
    with contextlib.suppress(EOFError):
        while ours.poll(60):
            said.append(ours.recv())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def test_every_kind_is_listed_with_what_it_does() -> None:
    assert set(faults.available()) >= {
        "no-controller",
        "empty-queue",
        "slow-events",
        "never-ready",
        "query-error",
        "out-of-order",
        "alloc-failure",
        "capacity",
        "extra-pool",
        "skip-sync",
        "extra-sync",
        "late",
        "microbatch-lag",
        "tie-break",
        "pause",
        "kill",
        "raise",
        "cpu-steal",
    }
    assert all(faults.available().values())


def check(case: Scenario) -> None:
    faults.check(case, workloads.parse(case))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kind": "microbatch-lag"}, r'faults\[0\]: .*set "traffic": true'),
        ({"kind": "extra-pool"}, r'faults\[0\]: .*set "storage": true'),
        ({"kind": "capacity", "host_pages": 200}, "host_pages is 200, sizes.host_pages 128"),
    ],
)
def test_a_fault_with_nothing_to_take_hold_of_is_refused(given: dict[str, Any], told: str) -> None:
    case = Scenario(name="c", topology=Topology(), workload=SCRIPT, faults=[given])
    with pytest.raises(BadInput, match=told):
        check(case)


def test_an_extra_pool_needs_a_name_of_its_own() -> None:
    fault = {"kind": "extra-pool", "name": "swa"}
    case = Scenario(
        name="c",
        topology=Topology(),
        workload=SCRIPT,
        faults=[fault],
        storage=True,
        sidecars=[Sidecar("swa")],
    )
    with pytest.raises(BadInput, match="'swa' is a sidecar's"):
        check(case)


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
        ({"kind": "empty-queue", "until_step": 0}, "holds in no step"),
        ({"kind": "out-of-order", "steps": 0}, "give 1 or more"),
        ({"kind": "capacity"}, "needs host_pages or device_pages"),
        ({"kind": "capacity", "host_pages": -1}, "from 0 on"),
        ({"kind": "late"}, "exactly one of steps and ms"),
        ({"kind": "late", "steps": 0}, "give more than 0"),
        ({"kind": "pause"}, "missing required field `ms`"),
        ({"kind": "pause", "ms": 1e9}, "at most 60000"),
        ({"kind": "kill", "signal": "SIGSTOP"}, "SIGSTOP"),
        ({"kind": "kill", "inside": "reduction"}, "inside is 'reduction': give one of any, all_re"),
        ({"kind": "raise", "inside": "any", "when": "end"}, "give one of them"),
        ({"kind": "cpu-steal", "spinners": 0}, "from 1 to 64"),
    ],
)
def test_a_bad_fault_is_refused_by_place_and_key(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        faults.parse([given])
