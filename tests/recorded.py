"""Runs for tests of the reports: a real deadlock, and made-up records of known content."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reports.results import Row, row
from testbed.model import record
from testbed.model.record import RunRecord
from testbed.sessions.result import RunResult, judged
from tests.record_builder import Model, Transfer

DATA = Path(__file__).parent / "data"


def deadlock() -> RunResult:
    """A real run on four ranks: the leader stage in a collective of all, the followers a microbatch
    behind in a receive, each waiting for the other.
    """
    path = DATA / "deadlock.json.gz"
    return judged(record.load(path), path)


def modelled(
    topology: str = "pp2tp2",
    transfers: Sequence[Transfer] = (),
    *,
    name: str = "model",
    **more: Any,
) -> RunRecord:
    """The record of a sound protocol under that name."""
    made = Model(topology, transfers=transfers, **more).record()
    return replace(made, scenario=made.scenario.but(name=name))


def in_session(folder: Path, records: Sequence[RunRecord]) -> list[Row]:
    """Keep those records as the runs of a session, and judge them."""
    rows = []
    for each in records:
        path = folder / "runs" / each.scenario.case_id
        record.save(each, path)
        rows.append(row(judged(each, path)))
    return rows
