"""What is remembered of a place that calls is told right of every later call from there."""

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed import isend as early_isend

from testbed.bench.ranks import recording
from testbed.model.events import Dropped, Enter, Event, Exit, Left, Settled, Touched
from testbed.model.topology import GroupSpec
from testbed.recorder.log import SharedLog, entries
from testbed.recorder.recorder import ListRecorder, LogRecorder, event_of
from testbed.recorder.shim import Shim
from tests.rig import of_kind
from tests.test_trace import StepClock

# Of the right class, but connected to nobody.
_ProcessGroup: Any = dist.ProcessGroup
GROUP = _ProcessGroup(0, 2)
OTHER = _ProcessGroup(0, 3)
NAMES = {GROUP: GroupSpec("pp[tp0]", (0, 1)), OTHER: GroupSpec("world", (0, 1, 2))}
PUBLIC = ("all_reduce", "broadcast", "send", "recv")
METHODS = ("send", "recv")


def done(*_: Any) -> Any:
    """The Work of an asynchronous operation that is over at once."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    made: Any = torch._C._distributed_c10d
    return made._create_work_from_future(future)


@pytest.fixture
def bare() -> Iterator[None]:
    """Functions and methods that do nothing in place of torch's, which come back afterwards."""
    there = recording.functions(Shim(ListRecorder(StepClock()), 0, NAMES).replacements())
    for name in PUBLIC:
        setattr(dist, name, _like(getattr(dist, name)))
    for name in METHODS:
        setattr(dist.ProcessGroup, name, lambda *args: done())
    yield
    recording.put(there)


@pytest.fixture
def seen(bare: None) -> list[Event]:
    """What a shim over them records."""
    recorder = ListRecorder(StepClock())
    recording.put(Shim(recorder, 0, NAMES).replacements())
    return recorder.events


def _like(call: Callable[..., Any]) -> Callable[..., Any]:
    def stub(*args: Any, **kwargs: Any) -> None:
        inspect.signature(call).bind(*args, **kwargs)

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


def test_the_log_holds_what_a_list_would(bare: None) -> None:
    log = SharedLog(1 << 16)
    recorders = ListRecorder(StepClock()), LogRecorder(log, StepClock())
    for recorder in recorders:
        recorded = Shim(recorder, 0, NAMES).replacements()
        stubs = recording.functions(recorded)
        recording.put(recorded)
        for value in (1, 2):
            dist.all_reduce(ints(value, 9), op=dist.ReduceOp.MIN, group=OTHER)
        recording.put(stubs)

    logged = [event_of(entry)._replace(t_us=0) for entry in entries(log.committed())]
    in_list = [event for event in recorders[0].events if isinstance(event, Enter | Exit)]
    assert len(logged) == len(in_list) == 4
    assert [tuple(event) for event in logged] == [
        tuple(event if isinstance(event, Exit) else event._replace(shape=list(event.shape)))
        for event in in_list
    ]
    assert log.standing()[1] == 0


def test_a_thread_has_its_own_operations_and_is_blocked_by_itself(bare: None) -> None:
    log = SharedLog(1 << 16)
    recorder = LogRecorder(log, StepClock())
    blocked: list[int] = []

    def looks(*args: Any, **kwargs: Any) -> None:
        blocked.append(log.standing()[1])
        if threading.current_thread() is not threading.main_thread():
            return
        other = threading.Thread(target=lambda: dist.broadcast(ints(1), 0, OTHER))
        other.start()
        other.join()

    dist.broadcast = _taking(dist.broadcast, looks)
    recording.put(Shim(recorder, 0, NAMES).replacements())
    dist.broadcast(ints(1), 0, GROUP)

    events = [event_of(entry) for entry in entries(log.committed())]
    threads = [(type(one).__name__, one.thread) for one in events if isinstance(one, Enter | Exit)]
    assert threads == [("Enter", 0), ("Enter", 1), ("Exit", 1), ("Exit", 0)]
    assert blocked == [1, 2]
    assert log.standing()[1] == 0


def _taking(call: Callable[..., Any], then: Callable[..., Any]) -> Callable[..., Any]:
    def stub(*args: Any, **kwargs: Any) -> None:
        inspect.signature(call).bind(*args, **kwargs)
        then()

    return stub


def test_what_an_exception_left_is_said_and_blocks_nobody(bare: None) -> None:
    log = SharedLog(1 << 16)

    def breaks() -> None:
        raise ValueError("no such peer")

    dist.send = _taking(dist.send, breaks)
    recording.put(Shim(LogRecorder(log, StepClock()), 0, NAMES).replacements())
    with pytest.raises(ValueError, match="no such peer"):
        dist.send(ints(1), group=GROUP, group_dst=1)

    *_, last = (event_of(entry) for entry in entries(log.committed()))
    assert isinstance(last, Left)
    assert last.type == "ValueError"
    assert log.standing()[1] == 0


def test_a_work_that_is_thrown_away_is_said_before_the_next_operation(seen: list[Event]) -> None:
    dist.isend(ints(5), group=GROUP, group_dst=1, tag=3)
    dist.send(ints(6), group=GROUP, group_dst=1, tag=4)

    kinds = [type(event) for event in seen]
    assert kinds == [Enter, Exit, Dropped, Enter, Exit]
    (dropped,) = of_kind(seen, Dropped)
    assert (dropped.op, dropped.ordinal, dropped.peer, dropped.tag) == ("isend", 0, 1, 3)


def test_a_work_that_is_asked_otherwise_is_settled_and_no_longer_watched(seen: list[Event]) -> None:
    uses: list[Callable[[Any], object]] = [
        lambda work: work.is_completed(),
        lambda work: work.get_future(),
    ]
    for use in uses:
        buffer = ints(4, 5)
        work = dist.irecv(buffer, group=GROUP, group_src=1, tag=3)
        use(work)
        buffer.zero_()
        del work
    assert [event.how for event in of_kind(seen, Settled)] == ["polled", "future"]
    assert of_kind(seen, Touched) == []
    assert of_kind(seen, Dropped) == []


def test_a_name_imported_before_and_a_method_of_the_group_are_recorded(seen: list[Event]) -> None:
    early_isend(ints(5), group=GROUP, group_dst=1).wait()  # type: ignore[union-attr]
    GROUP.send([ints(6)], 1, 0).wait()
    assert [(call.op, call.peer, call.ordinal, call.values) for call in entered(seen)] == [
        ("isend", 1, 0, [5]),
        ("wait", 1, 0, [5]),
        ("isend", 1, 1, [6]),
        ("wait", 1, 1, [6]),
    ]


def test_what_is_put_together_for_later_is_not_recorded_where_it_was_remembered(
    seen: list[Event],
) -> None:
    put_together = distributed_c10d._world.pg_coalesce_state

    def reduce() -> None:
        dist.all_reduce(ints(1), group=GROUP)

    reduce()
    put_together[GROUP] = []
    try:
        reduce()
    finally:
        del put_together[GROUP]
    reduce()
    assert [call.ordinal for call in entered(seen)] == [0, 1]


def test_who_is_no_member_takes_no_part(seen: list[Event]) -> None:
    dist.all_reduce(ints(1), group=dist.GroupMember.NON_GROUP_MEMBER)
    assert seen == []


def test_a_write_beside_the_part_that_is_sent_is_nobodys_mistake(seen: list[Event]) -> None:
    buffer = ints(1, 2, 3, 4)
    sent = dist.isend(buffer[:2], group=GROUP, group_dst=1)
    came = dist.irecv(buffer[2:3], group=GROUP, group_src=1)
    buffer[3:].zero_()
    for work in (sent, came):
        assert isinstance(work, dist.Work)
        work.wait()
    assert of_kind(seen, Touched) == []

    again = dist.isend(buffer[:2], group=GROUP, group_dst=1)
    buffer[1:].zero_()
    assert again is not None
    again.wait()
    assert [event.how for event in of_kind(seen, Touched)] == ["written"]
