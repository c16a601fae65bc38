"""Traces in Chrome's trace-event format, read back by the rules that its viewers go by."""

import gzip
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reports.perfetto import trace, write_trace
from testbed.model.events import Complete, Enter, Fired, Raised
from testbed.model.record import RunRecord
from tests.record_builder import Model, cut, inserted, load, with_events, write
from tests.recorded import deadlock

TraceEvent = dict[str, Any]

NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    "b": {"name", "cat", "pid", "tid", "ts", "id"},
    "e": {"name", "cat", "pid", "tid", "ts", "id"},
}


def timed(made: RunRecord) -> RunRecord:
    """The record with a clock: an event every ten microseconds on each rank."""
    for rank in range(len(made.ranks)):
        made = with_events(
            made,
            rank,
            lambda events: [event._replace(t_us=10 * at) for at, event in enumerate(events)],
        )
    return made


RECORDS = {
    "deadlock": deadlock().record,
    "sound": timed(Model("pp2tp2", transfers=[write("w0"), load("l0")], storage=True).record()),
    "late": timed(Model("pp2tp2", steps=6, transfers=[write("w0", slow={2: 4})]).record()),
    "cut": timed(
        cut(Model("pp3tp1").record(), 1, lambda event: isinstance(event, Enter), exit="stopped")
    ),
}


@pytest.fixture(params=RECORDS, name="made")
def _made(request: pytest.FixtureRequest) -> RunRecord:
    return RECORDS[request.param]


def events_of(made: RunRecord) -> list[TraceEvent]:
    found: list[TraceEvent] = trace(made)["traceEvents"]
    return found


def of_phase(made: RunRecord, phase: str) -> list[TraceEvent]:
    return [event for event in events_of(made) if event["ph"] == phase]


def test_every_event_has_what_its_phase_needs_and_times_are_whole_microseconds(
    made: RunRecord,
) -> None:
    for event in events_of(made):
        assert NEEDED[event["ph"]] <= event.keys()
        for key in ("ts", "dur"):
            assert isinstance(event.get(key, 0), int)
            assert event.get(key, 0) >= 0


def test_a_process_is_a_rank_and_a_thread_one_of_its_groups(made: RunRecord) -> None:
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_phase(made, "M")
        if event["name"] == "thread_name"
    }
    assert {pid for pid, _ in names} == {rank.rank for rank in made.ranks}
    slices = [event for event in of_phase(made, "X") if event["cat"] in ("op", "wait", "model")]
    assert slices
    assert all(names[event["pid"], event["tid"]] == event["args"]["group"] for event in slices)


def test_slices_of_a_thread_lie_beside_or_inside_each_other(made: RunRecord) -> None:
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in of_phase(made, "X"):
        span = (event["ts"], event["ts"] + event["dur"])
        threads[event["pid"], event["tid"]].append(span)
    for spans in threads.values():
        open_: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1]
            open_.append(end)


def test_every_call_is_a_slice(made: RunRecord) -> None:
    calls = sum(isinstance(event, Enter) for rank in made.ranks for event in rank.events)
    assert sum(e["cat"] in ("op", "wait", "model") for e in of_phase(made, "X")) == calls


def test_an_arrow_leads_from_inside_the_send_to_inside_the_receive(made: RunRecord) -> None:
    starts = {event["id"]: event for event in of_phase(made, "s")}
    ends = {event["id"]: event for event in of_phase(made, "f")}
    assert starts
    assert starts.keys() == ends.keys()
    slices = of_phase(made, "X")

    def around(event: TraceEvent) -> set[str]:
        return {
            one["name"].split()[0]
            for one in slices
            if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
            and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]
        }

    for number, start in starts.items():
        end = ends[number]
        assert start["pid"] != end["pid"]
        assert around(start) & {"send", "isend"}
        assert around(end) & {"recv", "irecv"}


def test_there_is_one_arrow_for_each_message_that_arrived() -> None:
    made = RECORDS["sound"]
    recvs = sum(
        isinstance(event, Enter) and event.op == "recv"
        for rank in made.ranks
        for event in rank.events
    )
    assert len(of_phase(made, "s")) == recvs > 0


def test_what_never_came_back_lasts_to_the_end_and_says_so() -> None:
    made = RECORDS["deadlock"]
    stuck = [
        e for e in of_phase(made, "X") if "never came back" in e["args"] and e["cat"] != "step"
    ]
    assert sorted(event["pid"] for event in stuck) == [0, 1, 2, 3]
    slices = of_phase(made, "X")
    assert {e["ts"] + e["dur"] for e in stuck} == {max(e["ts"] + e["dur"] for e in slices)}


def test_a_transfer_lasts_from_its_enqueueing_to_its_completion() -> None:
    made = RECORDS["sound"]
    begun = {event["id"]: event for event in of_phase(made, "b")}
    ended = {event["id"]: event for event in of_phase(made, "e")}
    done = sum(isinstance(event, Complete) for rank in made.ranks for event in rank.events)
    assert len(ended) == done == 8  # two transfers on four ranks
    assert all(begun[key]["ts"] < event["ts"] for key, event in ended.items())


def test_faults_and_exceptions_are_instants_of_their_rank() -> None:
    made = Model("pp2tp1", steps=2).record()
    made = inserted(made, 1, 0, Fired(0, 5, 0, "slow-events", "w0"), Raised(0, 6, "E", "m", "", ""))
    instants = [(event["name"], event["pid"], event["ts"]) for event in of_phase(made, "i")]
    assert instants == [("fault: slow-events", 1, 5), ("E", 1, 6)]


def test_ranks_share_the_clock_of_their_machine() -> None:
    made = deadlock().record
    # Each rank's own clock starts at its birth; on one clock a message is sent before it is there.
    starts = {event["id"]: event["ts"] for event in of_phase(made, "s")}
    assert all(starts[event["id"]] <= event["ts"] for event in of_phase(made, "f"))


def test_the_file_is_compressed_json_and_the_same_each_time(tmp_path: Path) -> None:
    made = deadlock().record
    path = write_trace(made, tmp_path)
    assert path.name == "trace.json.gz"
    once = path.read_bytes()
    assert msgspec.json.decode(gzip.decompress(once)) == trace(made)
    assert write_trace(made, tmp_path).read_bytes() == once
