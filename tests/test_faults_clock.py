"""clock-step: the wall clock of a rank, set in its steps and nowhere else."""

import time

import pytest

from testbed.model.events import Fired
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.protocols import Groups
from testbed.rank.assemble import assemble
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock


def test_the_wall_clock_is_off_in_the_faults_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # Put back afterwards: here the rank lives in the process of the tests.
    for name, fixed in (("time", lambda: 5000.0), ("time_ns", lambda: 5_000_000_000_000)):
        monkeypatch.setattr(time, name, fixed)
    fault = {"kind": "clock-step", "seconds": -3600, "from_step": 1, "until_step": 3}
    workload = {"kind": "scripted"}
    case = Scenario(name="c", topology=Topology(), workload=workload, faults=[fault], steps=4)
    clock = Clock()
    recorder = ListRecorder(clock)
    rank = assemble(case, 0, clock, recorder, Groups(case.topology, 0))

    seen = []
    for _ in range(case.steps):
        rank.run_step()
        seen.append((time.time(), time.time_ns() // 1_000_000_000))

    fired = [event for event in recorder.events if isinstance(event, Fired)]
    assert seen == [(5000, 5000), (1400, 1400), (1400, 1400), (5000, 5000)]
    assert [(event.step, event.detail) for event in fired] == [(1, "wall clock -3600 s")]
