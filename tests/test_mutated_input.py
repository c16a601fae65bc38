"""Whatever stands in a scenario file or a record: a value comes of it or BadInput, nothing else."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.results import row
from reports.story import story
from testbed.model import record, scenario
from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario, from_object, to_object
from testbed.model.topology import Topology
from testbed.sessions import catalog, execute
from testbed.sessions import result as results
from testbed.subjects import sglang
from tests.fake_fleet import clean, killed
from tests.fake_fleet import scenario as made_up
from tests.mutations import damaged, mutated
from tests.record_builder import Item, Model, load, write

T = TypeVar("T")

# A seed of its own for each example would make a failure hard to come back to.
SETTINGS = hypothesis.settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
LONGEST_LINE = 1010


def refused_or_not(what: Callable[[], T]) -> T | None:
    """What came of it; None if it was refused, in one line that can be printed."""
    try:
        return what()
    except BadInput as error:
        told = str(error)
        assert told.isprintable(), told
        assert len(told) < LONGEST_LINE
        return None


FAULTS: list[dict[str, Any]] = [
    {"kind": "no-controller", "on": {"tp": 1}},
    {"kind": "empty-queue", "queue": "write", "on": {"pp": 1}, "from_step": 0, "until_step": 3},
    {"kind": "slow-events", "steps": 2, "on": "followers"},
    {"kind": "slow-events", "ms": 5, "queue": "load"},
    {"kind": "never-ready", "nth": 1, "on": {"rank": [0, 2]}},
    {"kind": "query-error", "message": "sick"},
    {"kind": "out-of-order", "nth": 0, "steps": 3},
    {"kind": "alloc-failure", "pool": "device", "nth": 0},
    {"kind": "capacity", "host_pages": 3},
    {"kind": "extra-pool", "name": "more", "on": {"pp": 0}},
    {"kind": "skip-sync", "from_step": 2},
    {"kind": "extra-sync", "from_step": 2, "until_step": 4},
    {"kind": "late", "steps": 1},
    {"kind": "late", "ms": 1},
    {"kind": "microbatch-lag", "on": {"pp": 1}},
    {"kind": "tie-break"},
    {"kind": "clock-step", "seconds": -5},
    {"kind": "pause", "ms": 5, "until_step": 1},
    {"kind": "kill", "signal": "SIGABRT", "when": "exit"},
    {"kind": "kill", "inside": "any"},
    {"kind": "raise", "message": "no"},
    {"kind": "cpu-steal", "spinners": 1, "ms": 100},
]
WORKLOADS: list[dict[str, Any]] = [
    {
        "kind": "scripted",
        "writes": [{"at": 0, "ready_after": 1}, {"at": 1, "ready_after": None, "on": {"pp": 1}}],
        "loads": [{"at": 1, "ready_after": {"ms": 5}}, {"at": 2, "ready_after": {"error": "x"}}],
        "storage": [{"queue": "release", "at": 1}, {"queue": "sidecar:swa", "on": "leader"}],
        "backup_after": 2,
    },
    {"kind": "prefill", "lengths": [64, 128], "requests": 4, "ready_after": [1, 3], "per_step": 2},
    {"kind": "trace", "path": "no/such/trace.jsonl", "requests": 5},
]
EVERYTHING = {
    "name": "everything",
    "comment": "One of each key.",
    "topology": {"pp": 2, "tp": 2, "cp": 1},
    "subject": "batched",
    "steps": 8,
    "seed": 3,
    "storage": True,
    "traffic": True,
    "sidecars": [{"name": "swa", "on": {"pp": [0, 1]}}],
    "sizes": {"page_tokens": 16, "layers": 4, "device_pages": 64, "host_pages": 128},
    "workload": WORKLOADS[0],
    "faults": FAULTS,
    "claims": ["stage-local", "budget:batched"],
    "progress_within": 2,
    "deadline_ms": 500,
    "backend": "gloo",
    "device": "cpu",
    "expect": [
        {"verdict": "hang", "subject": ["sglang*", "fused"], "pp": [2], "deadline_ms": 300},
        {"verdict": "violation", "oracle": "agreement", "step": 1, "ranks": [2], "why": "so"},
    ],
}
SMALL = [
    {**EVERYTHING, "faults": [fault], "workload": workload}
    for fault in FAULTS
    for workload in WORKLOADS
]


def own_documents() -> list[Any]:
    """The scenarios that come with the testbed."""
    return [msgspec.json.decode(file.read_bytes()) for file in catalog.builtin_files()]


documents = st.sampled_from([EVERYTHING, *SMALL, *own_documents()])


@SETTINGS
@given(document=mutated(documents))
def test_a_mutated_scenario_is_read_or_refused(document: Any, tmp_path: Path) -> None:
    file = tmp_path / "mutated.json"
    file.write_bytes(msgspec.json.encode(document))
    read = refused_or_not(lambda: scenario.load(file))
    if read is not None:
        assert from_object(msgspec.json.decode(msgspec.json.encode(to_object(read))), "") == read
        # What the hosts are sent is no JSON: its numbers have a limit.
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(to_object(read))) == to_object(read)


@SETTINGS
@given(document=mutated(documents, most=2))
def test_a_mutated_scenario_can_be_run_or_is_refused_beforehand(document: Any) -> None:
    def made_ready() -> list[Scenario]:
        read = from_object(document, "mutated")
        spread = catalog.spread(read, [read.topology, Topology(4, 1), Topology(1, 2)])
        for case in spread:
            # A release would be asked for over the network.
            known = sglang.is_lifted(case.subject)
            execute.prepare(case.but(subject="batched") if known else case)
        return spread

    assert refused_or_not(made_ready) != []


@SETTINGS
@given(raw=damaged(st.sampled_from([msgspec.json.encode(one) for one in SMALL[:3]])))
def test_a_damaged_scenario_file_is_read_or_refused(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "damaged.json"
    file.write_bytes(raw)
    refused_or_not(lambda: scenario.load(file))


def records() -> list[record.RunRecord]:
    """Sound runs, a stalled one, and broken ones: an event of nearly every kind."""
    busy = Model(
        storage=True,
        transfers=[write("w0"), write("w1", at=1, slow={2: 4}), load("l0"), load("l1", ready=None)],
        items=[Item("release", 1), Item("prefetch", 2)],
    )
    return [
        Model(transfers=[write("w0"), load("l0", at=1)]).record(),
        Model("pp2tp1", "fused", storage=True, items=[Item("release")]).record(),
        busy.record(),
        Model(transfers=[write("w0", on="leader")]).record(),
        clean(made_up()),
        killed(made_up(), 1),
    ]


RECORDS = [record.encode(one) for one in records()]


def explained(file: Path) -> bytes:
    """All that the command line does with a record; what ``--json`` would write."""
    result = results.judged(record.load(file), file.parent)
    told = story(result, full=True)
    assert told.splitlines()[-1].startswith("replay it: ")
    return msgspec.json.encode([row(result), result.verdict.to_json()])


@SETTINGS
@given(document=mutated(st.sampled_from(RECORDS), most=2))
def test_a_mutated_record_is_explained_or_refused(document: Any, tmp_path: Path) -> None:
    file = tmp_path / record.RECORD_FILE
    file.write_bytes(gzip.compress(msgspec.json.encode(document), 1))
    refused_or_not(lambda: explained(file))


@SETTINGS
@given(raw=damaged(st.sampled_from([gzip.compress(msgspec.json.encode(one)) for one in RECORDS])))
def test_a_damaged_record_is_explained_or_refused(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / record.RECORD_FILE
    file.write_bytes(raw)
    refused_or_not(lambda: explained(file))


@pytest.mark.parametrize("place", range(len(RECORDS)))
def test_an_unharmed_record_is_explained(place: int, tmp_path: Path) -> None:
    file = tmp_path / record.RECORD_FILE
    file.write_bytes(gzip.compress(msgspec.json.encode(RECORDS[place])))
    assert explained(file)
