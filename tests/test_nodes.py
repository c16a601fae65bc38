"""A fleet on two machines: torchrun on each, the ranks of one case on both, a cable to pull."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.fleet import Fleet
from testbed.fleet import fleet as fleet_module
from testbed.fleet import remote as meeting
from testbed.fleet.heartbeat import FarWire
from testbed.model.errors import EnvironmentFault
from testbed.model.scenario import Scenario, from_object
from testbed.model.verdict import Outcome
from testbed.sessions import catalog
from testbed.sessions.execute import execute
from testbed.sessions.store import RunStore
from tests.processes import await_true, descendants
from tests.two_machines import network_of, why_not
from tests.two_nodes import TwoNodes, fleet_on_two_nodes

WORLD = 4
FOR_EVER_MS = 600_000

CORE = (
    "claim-one-agreement",
    "claim-stage-local-follower",
    "empty-leader-write",
    "empty-follower-both",
    "fault-heals",
    "none-controller-leader",
    "none-controller-follower",
    "prefill-32k",
    "skew-followers-slower-3",
    "skew-never-follower",
    "skew-never-leader-peer",
    "storage-sidecar",
    "fault-free-traffic",
)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with fleet_on_two_nodes(WORLD, tmp_path_factory.mktemp("fleet")) as running:
        yield running


NEVER_DONE = {
    "name": "never-done",
    "topology": {"pp": 2, "tp": 2},
    "steps": 100_000,
    "deadline_ms": FOR_EVER_MS,
    "workload": {"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]},
}
IN_STEP = {**NEVER_DONE, "name": "in-step", "steps": 8}


def scenario(data: dict[str, Any]) -> Scenario:
    return from_object(data, "test")


@pytest.fixture
def only_the_heartbeat_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else may notice that a node is lost: neither a deadline nor a missing answer."""
    monkeypatch.setattr(fleet_module, "_ANSWER_LIMIT_S", FOR_EVER_MS / 1e3)


@pytest.mark.parametrize("name", CORE)
def test_the_core_of_the_suite_ends_as_on_one_machine(
    two_nodes: TwoNodes, tmp_path: Path, name: str
) -> None:
    (case,) = catalog.load([name])
    result = execute(two_nodes.fleet, case, RunStore(tmp_path))
    assert result.why_not == ""


def test_a_case_has_ranks_on_both_machines(
    two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks: list[set[str]] = []
    begin = Fleet._step_through

    def look_in_mid_case(fleet: Fleet, case: Any) -> Any:
        networks.extend(
            {network_of(rank) for host in descendants(node) for rank in descendants(host)}
            for node in two_nodes.nodes
        )
        return begin(fleet, case)

    monkeypatch.setattr(Fleet, "_step_through", look_in_mid_case)
    assert two_nodes.fleet.run(scenario(IN_STEP)).ended == "finished"
    assert [len(each) for each in networks] == [1, 1]
    assert networks[0] != networks[1]


@pytest.mark.usefixtures("only_the_heartbeat_tells")
def test_a_link_that_goes_down_in_mid_case_is_an_error_and_once_it_is_back_the_next_case_runs(
    two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Fleet._step_through
    hosts_and_ranks: list[int] = []

    def unplug_in_mid_case(fleet: Fleet, case: Any) -> Any:
        hosts_and_ranks.extend(two_nodes.on_far())
        two_nodes.far.pull_the_plug()
        return begin(fleet, case)

    hosts = two_nodes.on_far()
    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "_step_through", unplug_in_mid_case)
        result = execute(two_nodes.fleet, scenario(NEVER_DONE), RunStore(tmp_path))

    assert result.verdict.outcome is Outcome.ERROR
    assert f"node 1 ({os.uname().nodename}, {two_nodes.far.address}) cannot be reached" in (
        result.verdict.summary
    )
    assert "node 0" not in result.verdict.summary
    # Still without a link, node 1 ends its ranks by itself and keeps its hosts.
    ranks = set(hosts_and_ranks) - set(hosts)
    assert len(ranks) == WORLD // 2
    await_true(lambda: not ranks & set(two_nodes.on_far()))
    assert two_nodes.on_far() == hosts

    two_nodes.far.plug_in()
    assert two_nodes.fleet.run(scenario(IN_STEP)).ended == "finished"
    assert two_nodes.on_far() == hosts


@pytest.mark.usefixtures("only_the_heartbeat_tells")
def test_a_link_that_goes_down_while_the_fleet_is_idle_costs_no_case(two_nodes: TwoNodes) -> None:
    assert two_nodes.fleet.run(scenario(IN_STEP)).ended == "finished"
    idle = two_nodes.gathered
    assert idle.lost == ""

    two_nodes.far.pull_the_plug()
    await_true(lambda: idle.lost)
    two_nodes.far.plug_in()

    assert f"{two_nodes.far.address}) cannot be reached" in idle.lost
    assert two_nodes.fleet.run(scenario(IN_STEP)).ended == "finished"


@pytest.mark.usefixtures("only_the_heartbeat_tells")
def test_while_the_link_stays_down_each_case_says_who_is_missing(
    two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_RETURN_LIMIT_S", 1.0)
    two_nodes.far.pull_the_plug()
    await_true(lambda: two_nodes.gathered.lost)
    missing = rf"hosts 2,3 of 4 did not come to .* \(node 1 \(.*, {two_nodes.far.address}\)\)"
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match=missing):
            two_nodes.fleet.run(scenario(IN_STEP))
    two_nodes.far.plug_in()
    monkeypatch.undo()
    await_true(lambda: back(two_nodes))


def back(two_nodes: TwoNodes) -> bool:
    """Whether a case runs again. Every attempt waits a moment for who is missing."""
    try:
        return two_nodes.fleet.run(scenario(IN_STEP)).ended == "finished"
    except EnvironmentFault:
        return False


@pytest.mark.usefixtures("only_the_heartbeat_tells")
def test_a_host_that_does_nothing_for_a_while_is_not_taken_for_lost(two_nodes: TwoNodes) -> None:
    assert two_nodes.fleet.run(scenario(IN_STEP)).ended == "finished"
    fleet = two_nodes.gathered
    wire = fleet._guests[2].wire
    assert isinstance(wire, FarWire)
    stopped = two_nodes.on_far()[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        # Its kernel answers for it: the silence grows until the next probe and never to the limit.
        for _ in range(2):
            await_true(lambda: wire.silent_s > 0.8)
            await_true(lambda: wire.silent_s < 0.3)
        assert fleet.lost == ""
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert two_nodes.fleet.run(scenario(IN_STEP)).ended == "finished"
    assert two_nodes.gathered is fleet
