"""Runs in which nothing is wrong: storage, sidecar pools, many rounds, and #33473's own unit
test on real ranks.
"""

from typing import TypeVar

import pytest

from cases.spread import PIPELINES, spread
from testbed.model.events import MODEL, Complete, End, Enter, Event, Query
from testbed.model.record import RankRecord
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase


@spread("storage-*", "many-idle-rounds")
def test_in_step(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


Kind = TypeVar("Kind", bound=Event)


def in_step_0(rank: RankRecord, kind: type[Kind]) -> list[Kind]:
    return [event for event in rank.events if isinstance(event, kind) and event.step == 0]


def of_subject(calls: list[Enter]) -> list[Enter]:
    """Without the model's, which there are where BACKEND=nccl adds its traffic."""
    return [call for call in calls if call.caller.split(">")[0] not in (MODEL, "drain")]


@pytest.mark.scenarios(
    "seed-counts", topologies=PIPELINES, subjects="batched fused sglang==0.5.19 sglang==0.5.23"
)
def test_the_seeds_mocked_assertions_hold_on_real_ranks(scenario: Scenario, check: RunCase) -> None:
    """Leader events [T, F] and [T, T]: the vector [1, 2], one agreement, one write and two loads
    completed on every rank; followers ask no event; a drain leaves no send outstanding."""
    result = check(scenario)
    topology = scenario.topology
    for rank in result.record.ranks:
        leads = rank.rank in topology.leaders
        calls = of_subject(in_step_0(rank, Enter))
        reduced = [call for call in calls if call.op == "all_reduce"]
        sent = [call for call in calls if call.op == "isend"]
        received = [call for call in calls if call.op == "recv"]
        groups = (topology.tp > 1) + (topology.cp > 1)
        last = topology.coords(rank.rank).pp == topology.pp - 1

        assert len(reduced) == (groups if leads else 0)
        assert len(received) == (0 if leads else 1)
        assert [call.values[:2] for call in sent] == ([] if last else [[1, 2]])
        assert [(done.queue, done.key) for done in in_step_0(rank, Complete)] == [
            ("write", "w0"),
            ("load", "l0"),
            ("load", "l1"),
        ]
        if not leads:
            assert not [event for event in rank.events if isinstance(event, Query)]
        outstanding = [event.sends for event in rank.events if isinstance(event, End)]
        assert max(outstanding) <= 1
        entered = of_subject([event for event in rank.events if isinstance(event, Enter)])
        waits = [call for call in entered if call.op == "wait"]
        sends = [call for call in entered if call.op == "isend"]
        assert len(waits) == len(sends)
