"""The flight recorder: the shared log, events, and the layer under torch.distributed."""

import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist

from testbed.model.events import CODES, EVENT_TYPES, Block, Enter, Event, Exit, Take, decode
from testbed.model.topology import GroupSpec
from testbed.recorder.log import SharedLog, entries
from testbed.recorder.recorder import ListRecorder, LogRecorder, event_of, read
from testbed.recorder.shim import Shim


class StepClock:
    """The least that a recorder needs of a clock."""

    step = 3


def test_a_log_survives_the_sigkill_of_the_process_that_wrote_it() -> None:
    log = SharedLog(4096)
    pid = os.fork()
    if pid == 0:
        LogRecorder(log, StepClock()).add(Block, "backup")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)

    (entry,) = entries(log.committed())
    assert event_of(entry)[0] == 3
    assert isinstance(event_of(entry), Block)
    assert log.standing()[1] == 1


def test_a_full_log_keeps_whole_entries_and_counts_what_it_dropped() -> None:
    log = SharedLog(24 + 2 * (4 + 10))
    places = [log.append(b"x" * 10) for _ in range(5)]

    assert list(entries(log.committed())) == [b"x" * 10] * 2
    assert log.dropped == 3
    assert places[2:] == [0, 0, 0]


def test_last_words_fit_into_a_full_log_and_nothing_else_follows_the_gap() -> None:
    log = SharedLog(4096, reserve=1024)
    while log.append(b"x" * 500):
        pass
    small, before = log.append(b"y"), list(entries(log.committed()))
    log.open_reserve()
    other = threading.Thread(target=log.append, args=(b"z",))
    other.start()
    other.join()
    log.append(b"last")

    assert small == 0
    assert list(entries(log.committed())) == [*before, b"last"]
    assert log.dropped == 3


def test_what_is_known_of_a_log_is_not_sent_again() -> None:
    log = SharedLog(4096)
    log.append(b"first")
    known = len(log.committed())
    log.append(b"second")

    assert list(entries(log.committed(known))) == [b"second"]


def test_a_rank_is_blocked_from_block_until_take() -> None:
    log = SharedLog(4096)
    recorder = LogRecorder(log, StepClock())
    recorder.add(Block, "backup")
    assert log.standing()[1] == 1
    recorder.add(Take, "backup", "b0")
    assert log.standing()[1] == 0


def test_every_kind_of_event_survives_the_log() -> None:
    log = SharedLog(1 << 16)
    recorder = LogRecorder(log, StepClock())
    for kind in EVENT_TYPES:
        recorder.add(kind, *["x"] * (len(kind._fields) - 2))

    decoded = [event_of(entry) for entry in entries(log.committed())]
    assert [type(event) for event in decoded] == list(EVENT_TYPES)
    assert all(event.step == 3 for event in decoded)


def _as_rank(rank: int, store: Path) -> list[Event]:
    """One of two gloo ranks: an all_reduce, then a message from rank 0 to rank 1, all recorded."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    recorder = ListRecorder(StepClock())
    Shim(recorder, rank, {None: GroupSpec("pp[tp0]", (0, 1))}).install()

    def agree() -> None:
        counts = torch.tensor([1 + rank, 5], dtype=torch.int32)
        dist.all_reduce(counts, dist.ReduceOp.MIN)
        if rank == 0:
            work = dist.isend(counts.clone(), group_dst=1, tag=7)
            assert work is not None
            work.wait()
        else:
            dist.recv(counts, group_src=0, tag=7)

    agree()
    events = list(recorder.events)
    dist.barrier()  # nobody leaves while the other still reads
    return events


def test_calls_are_recorded_with_channel_ordinal_values_and_caller(tmp_path: Path) -> None:
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            events = _as_rank(rank, tmp_path / "store")
            raw = [[CODES[type(event)], *event] for event in events]
            (tmp_path / f"rank{rank}").write_bytes(msgspec.json.encode(raw))
            os._exit(0)
        pids.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
    sender, receiver = (
        [decode(raw) for raw in msgspec.json.decode((tmp_path / f"rank{rank}").read_bytes())]
        for rank in range(2)
    )

    def entered(events: list[Event]) -> list[tuple[object, ...]]:
        return [event[2:11] for event in events if isinstance(event, Enter)]

    message = ("pp[tp0]", 0, 1, 7, "", "int32", 2)
    assert entered(sender) == [
        ("all_reduce", "pp[tp0]", 0, -1, -1, "MIN", "int32", 2, [1, 5]),
        ("isend", *message, [1, 5]),
        ("wait", *message, [1, 5]),
    ]
    assert [call[:8] for call in entered(receiver)] == [
        ("all_reduce", "pp[tp0]", 0, -1, -1, "MIN", "int32", 2),
        ("recv", "pp[tp0]", 0, 0, 7, "", "int32", 2),
    ]
    assert receiver[-1] == Exit(3, 0, [1, 5])
    assert all(
        event.caller.endswith("_as_rank>agree")
        for event in (*sender, *receiver)
        if isinstance(event, Enter)
    )


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xff\xff\x7f",  # a length past everything
        b"\x02\x00\x00\x00\xc1\xc1",  # no msgpack
        b"\x02\x00\x00\x00\x91\x7f",  # a kind of event that there is none of
        b"\x01\x00\x00\x00\x90",  # an event of nothing
        b"\x07\x00",  # half a length
    ],
)
def test_a_log_that_a_rank_wrote_over_is_read_up_to_the_damage(damage: bytes) -> None:
    log = SharedLog(4096)
    recorder = LogRecorder(log, StepClock())
    recorder.add(Block, "backup")
    recorder.add(Take, "backup", "b0")

    whole = read(log.committed())
    damaged = read(log.committed() + damage)

    assert whole.damage == ""
    assert damaged.events == whole.events
    assert len(damaged.events) == 2
    assert "after 2 events" in damaged.damage
