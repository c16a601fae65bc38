"""How ranks are scheduled: seen in the processes themselves."""

import os
from typing import Any

import pytest

from testbed.fleet import Fleet
from testbed.model.topology import Topology
from testbed.rank.policy import wake_without_preempting
from testbed.sessions.catalog import load
from tests.processes import descendants


@pytest.mark.parametrize(
    ("chosen", "then"),
    [(os.SCHED_OTHER, os.SCHED_BATCH), (os.SCHED_IDLE, os.SCHED_IDLE)],
)
def test_the_default_gives_way_and_a_policy_that_somebody_chose_stays(
    chosen: int, then: int
) -> None:
    pid = os.fork()
    if pid == 0:
        os.sched_setscheduler(0, chosen, os.sched_param(0))
        wake_without_preempting()
        os._exit(os.sched_getscheduler(0))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == then


def test_of_all_processes_of_a_fleet_only_the_ranks_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Fleet._step_through
    seen: list[int] = []

    def look(fleet: Fleet, case: Any) -> Any:
        seen.extend(os.sched_getscheduler(pid) for pid in descendants(os.getpid()))
        return begin(fleet, case)

    monkeypatch.setattr(Fleet, "_step_through", look)
    (scenario,) = load(["skew-followers-slower-1"])
    with Fleet(2) as fleet:
        assert fleet.run(scenario.but(topology=Topology(pp=2))).ended == "finished"
    assert seen.count(os.SCHED_BATCH) == 2
    assert len(seen) > 2  # launcher, torchrun and hosts are there, too
