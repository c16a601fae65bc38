"""Workloads on one rank: what they ask of it, and what they refuse."""

import json
from pathlib import Path
from typing import Any, TypeVar

import pytest

from testbed import workloads
from testbed.model.errors import BadInput
from testbed.model.events import (
    Begin,
    Complete,
    End,
    Event,
    Evict,
    Final,
    Request,
    Start,
    Take,
)
from testbed.model.scenario import Scenario, Sidecar, Sizes, load
from testbed.model.topology import Topology
from testbed.protocols import Groups
from testbed.rank.assemble import assemble
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock
from testbed.sessions.catalog import find
from testbed.workloads import trace

E = TypeVar("E", bound=Event)


def scenario(workload: dict[str, Any], **changes: Any) -> Scenario:
    return Scenario(name="case", topology=Topology(), workload=workload).but(**changes)


def run(case: Scenario, rank: int = 0) -> list[Event]:
    """One rank of a case, by itself: only topologies whose groups have one member get by."""
    clock = Clock()
    recorder = ListRecorder(clock)
    context = assemble(case, rank, clock, recorder, Groups(case.topology, rank))
    for _ in range(case.steps):
        context.run_step()
    context.finish()
    return recorder.events


def only(kind: type[E], events: list[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def refused(case: Scenario) -> str:
    with pytest.raises(BadInput) as caught:
        workloads.parse(case)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def balanced(events: list[Event]) -> bool:
    final = only(Final, events)[0]
    pools = all(
        pool["free"] + pool["tree"] + pool["flight"] == pool["total"]
        for pool in (final.device, final.host)
    )
    return pools and final.locks == final.explained


SCRIPT = {
    "kind": "scripted",
    "writes": [{"at": 0, "ready_after": 1}, {"at": 0, "ready_after": 3}],
    "loads": [{"at": 1, "ready_after": 1}],
}


def test_scripted_transfers_complete_when_their_events_are_ready() -> None:
    events = run(scenario(SCRIPT))
    done = [(event.step, event.key, event.bad_pages) for event in only(Complete, events)]
    assert done == [(1, "w0", 0), (2, "l0", 0), (3, "w1", 0)]
    assert balanced(events)


def test_begin_tells_what_is_ready_and_end_what_is_left() -> None:
    events = run(scenario(SCRIPT))
    begin, end = only(Begin, events)[1], only(End, events)[1]
    assert (begin.write, begin.load) == ([["w0", True], ["w1", False]], [["l0", False]])
    assert (end.write, end.pending_write, end.pending_load) == (["w1"], ["w1"], ["l0"])
    assert begin.storage == {}


def test_a_rank_outside_on_holds_the_nodes_but_enqueues_nothing() -> None:
    elsewhere = {"at": 0, "on": {"rank": 1}}
    events = run(scenario({"kind": "scripted", "writes": [elsewhere], "loads": [elsewhere]}))
    final = only(Final, events)[0]
    assert only(Start, events) == []
    assert (final.device["tree"], final.host["tree"]) == (2, 2)


def test_scripted_storage_items_are_dealt_with() -> None:
    items = [
        {"queue": "prefetch", "at": 1},
        {"queue": "release", "at": 1},
        {"queue": "sidecar:swa", "at": 2},
    ]
    workload = {"kind": "scripted", "writes": [{}], "storage": items, "backup_after": 2}
    events = run(scenario(workload, storage=True, sidecars=[Sidecar("swa")]))
    taken = [(take.step, take.queue, take.key) for take in only(Take, events)]
    backup = taken.pop()
    assert taken == [(1, "prefetch", "p0"), (1, "release", "p1"), (2, "sidecar:swa", "p2")]
    assert backup[:2] == (3, "backup")
    assert balanced(events)


def test_a_pending_backup_is_named_and_its_lock_explained() -> None:
    workload = {"kind": "scripted", "writes": [{}], "backup_after": 50}
    final = only(Final, run(scenario(workload, storage=True)))[0]
    assert len(final.pending["backup"]) == 1
    assert final.locks == final.explained == [0, 1]


def test_a_sidecar_item_goes_only_to_ranks_that_own_the_pool() -> None:
    workload = {"kind": "scripted", "storage": [{"queue": "sidecar:swa"}]}
    case = scenario(workload, storage=True, sidecars=[Sidecar("swa", {"rank": 1})])
    assert only(Take, run(case)) == []


PREFILL = {
    "kind": "prefill",
    "lengths": [64, 128, 256],
    "requests": 24,
    "shared_prefix": 0.75,
    "ready_after": [1, 3],
}
TIGHT = Sizes(page_tokens=16, device_pages=24, host_pages=48)


def test_prefill_reuses_prefixes_evicts_and_loads_back() -> None:
    events = run(scenario(PREFILL, steps=40, sizes=TIGHT))
    requests = only(Request, events)
    assert [request.key for request in requests] == [f"r{n}" for n in range(24)]
    assert any(request.device_hit for request in requests)
    assert any(request.host_hit for request in requests)
    assert {event.where for event in only(Evict, events)} == {"device", "host"}
    assert {event.queue for event in only(Complete, events)} == {"write", "load"}
    assert all(event.bad_pages == 0 for event in only(Complete, events))
    assert balanced(events)


def test_every_block_of_a_request_is_hit_or_computed() -> None:
    for request in only(Request, run(scenario(PREFILL, steps=40, sizes=TIGHT))):
        pages = {0: 4, 1: 8, 2: 16}[int(request.key[1:]) % 3]
        assert request.device_hit + request.host_hit + request.computed == pages


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    one, same = (run(scenario(PREFILL, steps=30, sizes=TIGHT, seed=7)) for _ in range(2))
    other = run(scenario(PREFILL, steps=30, sizes=TIGHT, seed=8))
    assert one == same
    assert [event.tree for event in only(End, one)] != [event.tree for event in only(End, other)]


def test_readiness_is_the_same_for_a_key_on_every_rank_and_within_its_bounds() -> None:
    starts = only(Start, run(scenario(PREFILL, steps=30, sizes=TIGHT)))
    waits = {int(start.ready.removeprefix("steps:")) - start.step for start in starts}
    assert waits == {1, 2, 3}


def test_a_request_without_room_waits_and_is_admitted_once() -> None:
    workload = PREFILL | {"lengths": [256], "per_step": 3, "requests": 4, "shared_prefix": 0.0}
    sizes = Sizes(device_pages=17, host_pages=64)
    requests = only(Request, run(scenario(workload, steps=20, sizes=sizes)))
    assert [request.key for request in requests] == ["r0", "r1", "r2", "r3"]
    assert len({request.step for request in requests}) == 4


def test_backups_of_requests_reach_storage() -> None:
    events = run(scenario(PREFILL, steps=40, sizes=TIGHT, storage=True))
    assert {take.queue for take in only(Take, events)} == {"backup"}
    assert balanced(events)


LINE = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}


def written(folder: Path, *lines: Any) -> str:
    path = folder / "trace.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return str(path)


def test_a_trace_is_read_block_by_block(tmp_path: Path) -> None:
    path = written(tmp_path, LINE, LINE | {"hash_ids": [0, 2]}, "broken, but past the limit")
    events = run(scenario({"kind": "trace", "path": path, "requests": 2}))
    told = [(each.key, each.device_hit, each.computed) for each in only(Request, events)]
    assert told == [("r0", 0, 2), ("r1", 1, 1)]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{oops", "malformed"),
        ("", "truncated"),
        (LINE | {"input_length": "long"}, "input_length"),
        (LINE | {"hash_ids": [1, -2]}, "hash_ids"),
        (LINE | {"hash_ids": [1]}, "hash_ids"),
        ({"timestamp": 0, "input_length": 1, "hash_ids": [1]}, "output_length"),
    ],
)
def test_a_broken_line_is_refused_by_file_line_and_field(
    tmp_path: Path, line: Any, field: str
) -> None:
    path = written(tmp_path, LINE, line)
    told = refused(scenario({"kind": "trace", "path": path}))
    assert f"{path}, line 2: " in told
    assert field in told


def test_an_absent_trace_is_refused() -> None:
    assert "cannot be read" in refused(scenario({"kind": "trace", "path": "/no/such/trace"}))


def test_requests_are_read_from_the_head_of_the_real_trace() -> None:
    path = Path(__file__).parents[2] / "shared/data/mooncake/conversation_trace.head3000.jsonl"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    requests = trace.read(path)
    assert len(requests) == 3000
    assert max(len(request.blocks) for request in requests) == 241


def test_the_generated_conversation_evicts_loads_back_and_admits_every_request() -> None:
    (path,) = find("conversation")
    events = run(load(path).but(topology=Topology(), subject="batched"))
    admitted = only(Request, events)
    assert [event.key for event in admitted] == [f"r{number}" for number in range(200)]
    assert sum(event.host_hit for event in admitted) > 0
    assert only(Evict, events)
    assert balanced(events)


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({}, "workload.kind is None"),
        ({"kind": "scripted", "write": []}, "unknown field `write`"),
        ({"kind": "scripted", "writes": [{"when": 1}]}, "unknown field `when`"),
        ({"kind": "scripted", "writes": [{"at": 8}]}, "workload.writes[0].at is 8"),
        ({"kind": "scripted", "writes": [{"ready_after": -1}]}, "writes[0].ready_after is -1"),
        ({"kind": "scripted", "loads": [{"on": {"dp": 0}}]}, "unknown key 'dp'"),
        ({"kind": "scripted", "storage": [{"queue": "release"}]}, "storage is off"),
        ({"kind": "scripted", "storage": [{"queue": "x"}]}, "workload.storage[0].queue is 'x'"),
        ({"kind": "scripted", "writes": [{}] * 33}, "sizes.device_pages is 64"),
        ({"kind": "scripted", "backup_after": -1}, "backup_after is -1"),
        ({"kind": "prefill", "lengths": [5]}, "requests"),
        ({"kind": "prefill", "lengths": [], "requests": 1}, "lengths is []"),
        ({"kind": "prefill", "lengths": [5], "requests": 0}, "workload.requests is 0"),
        ({"kind": "prefill", "lengths": [5000], "requests": 1}, "313 pages"),
        ({"kind": "prefill", "lengths": [5], "requests": 1, "per_step": 0}, "per_step is 0"),
        ({"kind": "prefill", "lengths": [5], "requests": 1, "ready_after": [3, 1]}, "ready_after"),
        ({"kind": "prefill", "lengths": [5], "requests": 1, "shared_prefix": 2}, "shared_prefix"),
        ({"kind": "trace", "path": "x", "limit": 1}, "unknown field `limit`"),
    ],
)
def test_a_bad_workload_is_refused_in_one_line(workload: dict[str, Any], told: str) -> None:
    assert told in refused(scenario(workload))
