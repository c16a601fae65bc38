"""What is remembered of a place that calls is told right of every later call from there."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from testbed.bench.ranks import recording
from testbed.topology import GroupSpec
from testbed.trace.events import Enter, Event, Exit, Touched
from testbed.trace.log import SharedLog, entries
from testbed.trace.recorder import ListRecorder, LogRecorder, event_of
from testbed.trace.shim import Shim
from tests.rig import of_kind
from tests.test_trace import StepClock

GROUP: Any = object()
OTHER: Any = object()
NAMES = {GROUP: GroupSpec("pp[tp0]", (0, 1)), OTHER: GroupSpec("world", (0, 1, 2))}
OPERATIONS = ("all_reduce", "broadcast", "send", "recv", "isend", "irecv")


class Done(dist.Work):
    """An asynchronous operation that is over at once."""

    def wait(self, timeout: Any = None) -> bool:
        """Nothing to wait for."""
        return True


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    """What a shim over functions that do nothing records."""
    there = recording.functions()
    for name in OPERATIONS:
        result = Done() if name.startswith("i") else None
        setattr(dist, name, _like(getattr(dist, name), result))
    recorder = ListRecorder(StepClock())
    Shim(recorder, 0, NAMES).install()
    yield recorder.events
    recording.put(there)


def _like(call: Callable[..., Any], result: Any) -> Callable[..., Any]:
    def stub(*args: Any, **kwargs: Any) -> Any:
        inspect.signature(call).bind(*args, **kwargs)
        return result

    return stub


def entered(events: list[Event]) -> list[Enter]:
    return of_kind(events, Enter)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_calls_from_one_place_are_told_apart_by_all_their_arguments(seen: list[Event]) -> None:
    for tag in (7, 8, 7):
        for group, peer in ((GROUP, 1), (OTHER, 2), (OTHER, 1)):
            dist.send(ints(tag), group=group, group_dst=peer, tag=tag)

    assert [(call.group, call.peer, call.tag, call.ordinal) for call in entered(seen)] == [
        ("pp[tp0]", 1, 7, 0),
        ("world", 2, 7, 0),
        ("world", 1, 7, 0),
        ("pp[tp0]", 1, 8, 0),
        ("world", 2, 8, 0),
        ("world", 1, 8, 0),
        ("pp[tp0]", 1, 7, 1),
        ("world", 2, 7, 1),
        ("world", 1, 7, 1),
    ]
    assert [call.values for call in entered(seen)] == [[7]] * 3 + [[8]] * 3 + [[7]] * 3


def test_calls_from_one_place_are_told_apart_by_their_tensor(seen: list[Event]) -> None:
    tensors = [ints(1, 2), ints(3), torch.tensor([5]), torch.tensor([[1, 0], [1, 1]]).bool()]
    for tensor in [*tensors, torch.ones(3), ints(*range(17))]:
        dist.broadcast(tensor, src=1, group=GROUP)

    told = [(call.dtype, call.numel, call.values, tuple(call.shape)) for call in entered(seen)]
    assert told == [
        ("int32", 2, [1, 2], ()),
        ("int32", 1, [3], ()),
        ("int64", 1, [5], ()),
        ("bool", 4, [1, 0, 1, 1], (2, 2)),
        ("float32", 3, [], ()),  # whole numbers only
        ("int32", 17, [], ()),  # and few of them
    ]
    assert [call.ordinal for call in entered(seen)] == list(range(6))


def test_reduce_ops_are_told_apart_given_by_place_or_by_name(seen: list[Event]) -> None:
    for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        dist.all_reduce(ints(1), op, GROUP)
        dist.all_reduce(ints(1), op=op, group=GROUP)
    dist.all_reduce(tensor=ints(4), group=GROUP)

    told = [call.reduce_op for call in entered(seen)]
    assert told == ["MIN", "MIN", "MAX", "MAX", "MIN", "MIN", "SUM"]
    assert entered(seen)[-1].values == [4]


def test_a_place_that_varies_without_end_is_told_right_and_forgotten(seen: list[Event]) -> None:
    tags = [*range(300), *range(300)]
    for tag in tags:
        dist.recv(ints(0), group=GROUP, group_src=1, tag=tag)
    assert [call.tag for call in entered(seen)] == tags
    assert [call.ordinal for call in entered(seen)] == [0] * 300 + [1] * 300


def test_one_place_reached_by_two_ways_has_two_callers(seen: list[Event]) -> None:
    def agree() -> None:
        dist.all_reduce(ints(1), group=GROUP)

    def writing_check() -> None:
        agree()

    def loading_check() -> None:
        agree()

    for check in (writing_check, loading_check, writing_check):
        check()
    callers = [call.caller.rpartition("has_two_callers>")[2] for call in entered(seen)]
    assert callers == ["writing_check>agree", "loading_check>agree", "writing_check>agree"]
    assert len({call.site for call in entered(seen)}) == 1


def test_a_wait_is_told_with_its_own_place(seen: list[Event]) -> None:
    def post() -> Any:
        return dist.isend(ints(5), group=GROUP, group_dst=1, tag=3)

    def drain(sends: list[Any]) -> None:
        for send in sends:
            send.wait()

    drain([post(), post()])
    assert [(call.op, call.ordinal, call.caller.rpartition(">")[2]) for call in entered(seen)] == [
        ("isend", 0, "post"),
        ("isend", 1, "post"),
        ("wait", 0, "drain"),
        ("wait", 1, "drain"),
    ]
    assert all((call.peer, call.tag, call.values) == (1, 3, [5]) for call in entered(seen))


def test_a_buffer_in_use_is_not_read_before_its_own_wait(seen: list[Event]) -> None:
    buffer = ints(5)
    works = [dist.irecv(buffer, group=GROUP, group_src=1, tag=tag) for tag in (1, 2)]
    for work in reversed(works):
        assert work is not None
        work.wait()

    values = [(call.op, call.tag, call.values) for call in entered(seen)]
    assert values == [
        ("irecv", 1, [5]),
        ("irecv", 2, []),  # it belongs to the first one
        ("wait_irecv", 2, [5]),
        ("wait_irecv", 1, [5]),
    ]


def test_a_buffer_being_sent_may_be_read_but_a_write_is_told_once_where_its_wait_shows_it(
    seen: list[Event],
) -> None:
    def drain(work: Any) -> None:
        work.wait()
        work.wait()

    uses: list[Callable[[torch.Tensor], object]] = [
        lambda buffer: buffer.tolist(),
        lambda buffer: buffer[1:].zero_(),
    ]
    for use in uses:
        buffer = ints(4, 5)
        work = dist.isend(buffer, group=GROUP, group_dst=1, tag=3)
        use(buffer)
        drain(work)
    told = [(event.how, event.op, event.ordinal, event.tag) for event in of_kind(seen, Touched)]
    assert told == [("written", "isend", 1, 3)]
    assert of_kind(seen, Touched)[0].caller.endswith("drain")


def test_the_log_holds_what_a_list_would() -> None:
    log = SharedLog(1 << 16)
    there = recording.functions()
    for name in OPERATIONS:
        setattr(dist, name, _like(getattr(dist, name), None))
    recorders = ListRecorder(StepClock()), LogRecorder(log, StepClock())
    for recorder in recorders:
        stubs = recording.functions()
        Shim(recorder, 0, NAMES).install()
        for value in (1, 2):
            dist.all_reduce(ints(value, 9), op=dist.ReduceOp.MIN, group=OTHER)
        recording.put(stubs)
    recording.put(there)

    logged = [event_of(entry)._replace(t_us=0) for entry in entries(log.committed())]
    in_list = [event for event in recorders[0].events if isinstance(event, Enter | Exit)]
    assert len(logged) == len(in_list) == 4
    assert [tuple(event) for event in logged] == [
        tuple(event if isinstance(event, Exit) else event._replace(shape=list(event.shape)))
        for event in in_list
    ]
    assert log.blocked_in()[1] is None
