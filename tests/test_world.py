"""The world of ranks: what runs, what is recorded, and that nothing is ever left behind."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.fleet import Fleet, LastingFleet
from testbed.fleet import fleet as fleet_module
from testbed.fleet.listener import Door, Guest
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.events import Complete, Enter, Fired, Raised
from testbed.model.record import RunRecord
from testbed.model.scenario import Scenario, from_object
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome
from testbed.oracles import judge
from testbed.wire import Hello, Refused, Wire
from tests.leaving import FOLDER_ENV
from tests.processes import GONE_WITHIN_S, await_gone, await_true, descendants, module

ROOT = Path(__file__).resolve().parents[1]

ONE_WRITE = {"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]}


def scenario(**changes: object) -> Scenario:
    data = {"name": "one-write", "topology": {"pp": 2, "tp": 1}, "steps": 4, "workload": ONE_WRITE}
    return from_object({**data, **changes}, "test")


NEVER_ENDING = {
    "name": "never-ending",
    "topology": {"pp": 2, "tp": 1},
    "steps": 4,
    "deadline_ms": 60_000,
    "workload": {"kind": "scripted", "writes": [{"at": 0, "ready_after": None}]},
    "faults": [{"kind": "slow-events", "on": "leader", "ms": 0}],
}


@pytest.fixture(scope="module")
def two() -> Iterator[Fleet]:
    with Fleet(2) as fleet:
        yield fleet


def completed(record: RunRecord) -> list[list[str]]:
    return [
        [event.key for event in rank.events if isinstance(event, Complete)] for rank in record.ranks
    ]


def test_every_topology_that_fits_runs_on_one_fleet(two: Fleet) -> None:
    for topology in (Topology(1, 1), Topology(2, 1), Topology(1, 2), Topology(1, 1, 2)):
        record = two.run(scenario().but(topology=topology))
        assert record.ended == "finished"
        assert completed(record) == [["w0"]] * topology.size


def test_a_topology_larger_than_the_world_is_refused_before_anything_runs(two: Fleet) -> None:
    with pytest.raises(BadInput, match="pp8tp8 needs 64 ranks, the fleet has 2"):
        two.run(scenario().but(topology=Topology(8, 8)))


def test_oversubscribed_hosts_run_more_ranks_than_there_are_hosts() -> None:
    with Fleet(2, oversubscribe=True) as fleet:
        record = fleet.run(scenario().but(topology=Topology(4, 2)))
    assert record.ended == "finished"
    assert completed(record) == [["w0"]] * 8


def test_a_leaders_vector_travels_over_real_groups(two: Fleet) -> None:
    record = two.run(scenario())

    calls = [
        [(event.op, event.values) for event in rank.events if isinstance(event, Enter)]
        for rank in record.ranks
    ]
    assert ("isend", [1, 0]) in calls[0]
    assert {op for op, _ in calls[1]} == {"recv"}


def test_a_rank_that_raises_is_recorded_with_its_traceback_and_the_next_case_runs(
    two: Fleet,
) -> None:
    broken = two.run(scenario(storage=True, faults=[{"kind": "no-controller", "on": {"pp": 1}}]))

    assert broken.ended == "broken"
    raised = [event for event in broken.ranks[1].events if isinstance(event, Raised)]
    assert raised[0].type == "AttributeError"
    assert "check_storage" in raised[0].traceback
    assert any(isinstance(event, Fired) for event in broken.ranks[1].events)
    assert completed(two.run(scenario())) == [["w0"], ["w0"]]


def test_beside_a_rank_that_raised_the_others_go_as_far_as_they_can() -> None:
    # Ranks 1 and 2 have no such load and raise in step 2, in which 0 and 3 complete it.
    loads = {"kind": "scripted", "loads": [{"at": 1, "ready_after": 1, "on": {"rank": [0, 3]}}]}
    case = scenario(topology={"pp": 4, "tp": 1}, steps=8, workload=loads)
    with Fleet(4) as four:
        records = [four.run(case) for _ in range(10)]
    assert [completed(record) for record in records] == [[["l0"], [], [], ["l0"]]] * 10
    # Down to the notes on where the ranks stood in the end, nothing is up to the moment.
    assert {judge(record).notes for record in records} == {judge(records[0]).notes}
    assert [rank.exit for rank in records[0].ranks] == ["stopped", "raised", "raised", "stopped"]


def test_a_rank_that_somebody_stopped_is_the_root_of_the_hang(two: Fleet) -> None:
    pause = {"kind": "pause", "on": {"pp": 1}, "from_step": 2, "until_step": 3, "ms": 20_000}
    record = two.run(scenario(deadline_ms=300, faults=[pause]))
    verdict = judge(record)

    assert record.ended == "deadline"
    assert (verdict.outcome, verdict.ranks) == (Outcome.HANG, (1,))
    assert "rank 1 is stopped by somebody's SIGSTOP" in verdict.summary


def test_a_rank_blocked_for_ever_is_stopped_at_the_deadline_with_its_stack(two: Fleet) -> None:
    record = two.run(scenario(deadline_ms=300, faults=[{"kind": "never-ready", "on": {"pp": 1}}]))

    assert record.ended == "deadline"
    assert record.ranks[1].exit == "stopped"
    assert "in synchronize" in record.ranks[1].stack
    assert completed(two.run(scenario())) == [["w0"], ["w0"]]


def test_a_rank_killed_in_any_moment_is_seen_with_its_signal(two: Fleet) -> None:
    host = hosts()[-1]
    pid = os.fork()
    if pid == 0:
        while not (ranks := descendants(host)):
            time.sleep(0.001)  # the fork has no event to wait for from out here
        os.kill(ranks[0], signal.SIGKILL)
        os._exit(0)
    record = two.run(scenario(deadline_ms=5000, steps=100_000))
    os.waitpid(pid, 0)

    assert record.ended == "broken"
    assert [rank.signal for rank in record.ranks if rank.exit == "signal"] == [signal.SIGKILL]


def hosts() -> list[int]:
    """The hosts of this process's fleets."""
    return [pid for pid in descendants(os.getpid()) if module(pid) == "testbed.fleet.fork_server"]


def test_a_stranger_without_the_token_is_refused_with_one_line_on_both_sides(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first to connect is the stranger: it comes before any host has imported torch.
    begin = Fleet._accept

    def accept_after_a_stranger(fleet: Fleet, door: Door) -> list[Guest]:
        stranger = Wire(socket.create_connection((door.host, door.port)))
        stranger.send(Hello("wrong", "0", 0, 0))
        guests = begin(fleet, door)
        answer = stranger.receive()
        assert isinstance(answer, Refused)
        assert answer.why == "wrong token"
        return guests

    monkeypatch.setattr(Fleet, "_accept", accept_after_a_stranger)
    with Fleet(1):
        pass
    assert capfd.readouterr().err.strip() == "testbed: a host was refused: wrong token"


def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFault, match=f"port {port} on 127.0.0.1 cannot be used"):
            Fleet(1, port=port)


# --- what is left when something is killed -----------------------------------------------------

CONTROLLER = """
import json, sys
from testbed.model.scenario import from_object
from testbed.model.verdict import Outcome
from testbed.fleet import Fleet, LastingFleet
from testbed.fleet import fleet as fleet_module
with Fleet(2) as fleet:
    print(fleet.folder, flush=True)
    fleet.run(from_object(json.loads(sys.argv[1]), "test"))
"""


@contextlib.contextmanager
def controller_in_mid_case(
    work: Path, subject: str = "batched"
) -> Iterator[tuple[subprocess.Popen[str], Path, list[int]]]:
    """A controller whose follower rank is blocked for ever: (it, its folder, all processes below
    it).
    """
    endless = {**NEVER_ENDING, "faults": [{"kind": "never-ready", "on": {"pp": 1}}]}
    endless |= {"workload": ONE_WRITE, "subject": subject}
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, json.dumps(endless)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(work)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as controller:
        assert controller.stdout is not None
        folder = Path(controller.stdout.readline().strip())
        while len(pids := descendants(controller.pid)) < 6:  # launcher, torchrun, 2 hosts, 2 ranks
            assert controller.poll() is None
            time.sleep(0.01)  # ranks come and go without an event for a bystander
        try:
            yield controller, folder, pids
        finally:
            controller.kill()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_port_or_file_is_left_when_the_controller_is_ended(
    tmp_path: Path, signum: signal.Signals
) -> None:
    with controller_in_mid_case(tmp_path) as (controller, folder, pids):
        address = json.loads((folder / "fleet.json").read_text())
        controller.send_signal(signum)
        controller.wait(GONE_WITHIN_S)
        assert await_gone(pids) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address["host"], address["port"]))


@pytest.mark.parametrize(
    "victim", ["launchers.torchrun", "torch.distributed.run", "testbed.fleet.fork_server"]
)
def test_no_process_or_file_is_left_when_a_process_of_the_fleet_is_killed(
    tmp_path: Path, victim: str
) -> None:
    with controller_in_mid_case(tmp_path) as (controller, _, pids):
        # The module right after the interpreter's first -m: torchrun names the hosts' too.
        of_victim = [pid for pid in pids if module(pid) == victim]
        os.kill(of_victim[0], signal.SIGKILL)
        assert await_gone([*pids, controller.pid]) == []
        assert controller.stderr is not None
        assert "EnvironmentFault: host" in controller.stderr.read()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Path]]:
    """A fleet of one host, and where processes that its ranks leave behind enter their ids."""
    folder = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(FOLDER_ENV, str(folder))
        with Fleet(1, oversubscribe=True) as fleet:
            yield fleet, folder


@pytest.mark.parametrize(
    ("kind", "count"), [("plain_child", 1), ("daemon", 2), ("stopped_child", 1), ("brief_child", 0)]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_rank_leaves_behind_is_ended_and_told(
    left: tuple[Fleet, Path], kind: str, count: int, ranks: int
) -> None:
    fleet, folder = left
    before = set(folder.iterdir())
    case = scenario(subject=f"tests.leaving:{kind}", topology={"pp": ranks, "tp": 1})
    record = fleet.run(case)
    came = [int(file.name) for file in set(folder.iterdir()) - before]

    assert len(came) == count * ranks
    assert await_gone(came) == []
    assert record.ended == "finished"
    assert sum(rank.left for rank in record.ranks) == count * ranks
    assert judge(record).outcome is Outcome.OK
    if kind == "plain_child":  # still in its rank's group: whose it was is known
        assert [rank.left for rank in record.ranks] == [1] * ranks


def test_what_a_rank_forks_neither_writes_its_record_nor_speaks_to_the_host(
    left: tuple[Fleet, Path],
) -> None:
    fleet, _ = left
    record = fleet.run(scenario(subject="tests.leaving:straying_child"))
    assert [rank.exit for rank in record.ranks] == ["done"] * len(record.ranks)
    assert not any(isinstance(event, Raised) for rank in record.ranks for event in rank.events)
    assert all("SystemExit: 0" in rank.output for rank in record.ranks)
    assert judge(record).outcome is Outcome.OK


@pytest.mark.parametrize(
    "victim", ["testbed.fleet.fork_server", "launchers.torchrun", "controller"]
)
def test_what_a_rank_left_behind_does_not_outlive_a_fleet_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    folder, temporary = tmp_path / "left", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setenv(FOLDER_ENV, str(folder))
    with controller_in_mid_case(temporary, subject="tests.leaving:daemon") as (controller, _, pids):
        await_true(lambda: len(list(folder.iterdir())) == 4)  # two ranks with two each
        by_module = [pid for pid in pids if module(pid) == victim]
        os.kill(controller.pid if victim == "controller" else by_module[0], signal.SIGKILL)
        left = [int(file.name) for file in folder.iterdir()]
        assert await_gone([*left, *pids]) == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_host_that_is_stopped_as_it_starts_does_not_outlive_its_fleet(
    tmp_path: Path, signum: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, json.dumps(NEVER_ENDING)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as controller:
        found: list[int] = []

        def a_host_is_there() -> bool:
            pids = descendants(controller.pid)
            found[:] = [pid for pid in pids if module(pid) == "testbed.fleet.fork_server"]
            return bool(found)

        await_true(a_host_is_there)
        os.kill(found[0], signal.SIGSTOP)  # it has not asked for its parent-death signal yet
        everything = descendants(controller.pid)
        controller.send_signal(signum)
        controller.wait(GONE_WITHIN_S)
        assert await_gone(everything) == []
    assert list(tmp_path.iterdir()) == []


def test_a_loopback_that_is_down_is_told_in_one_line_at_once() -> None:
    run = in_a_network_of_its_own(
        [sys.executable, "-m", "testbed", "run", "skew-followers-slower-1", "--pp=2", "--tp=1"]
    )
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert line.startswith("testbed: 127.0.0.1 cannot be reached (")
    assert line.endswith("is the loopback interface down? `ip link set lo up` brings it up")


def in_a_network_of_its_own(command: list[str]) -> "subprocess.CompletedProcess[str]":
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "-r", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode != 0:
        pytest.skip("network namespaces cannot be made here")
    return subprocess.run([*unshare, *command], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("room", ["size=4k", "size=64k", "nr_inodes=1"])
def test_a_full_folder_for_temporary_files_is_told_in_one_line_at_once(
    tmp_path: Path, room: str
) -> None:
    command = [sys.executable, "-m", "testbed", "run", "skew-followers-slower-1", "--pp=2"]
    mount = f"mount -t tmpfs -o {room} none {tmp_path} && exec {shlex.join([*command, '--tp=1'])}"
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    tried = subprocess.run([*unshare, "sh", "-c", f"mount -t tmpfs -o {room} none {tmp_path}"])
    if tried.returncode != 0:
        pytest.skip("no file system can be mounted here")
    run = subprocess.run(
        [*unshare, "sh", "-c", mount],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"testbed: temporary files cannot be written to {tmp_path} (No space")


def test_after_the_loss_of_a_host_the_next_case_finds_a_new_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "_LAST_WORDS_LIMIT_S", GONE_WITHIN_S)
    others = set(hosts())
    with LastingFleet(lambda: Fleet(2)) as fleet:
        os.kill(next(pid for pid in hosts() if pid not in others), signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match=r"host \d is gone: .*SIGKILL"):
            fleet.run(scenario())
        assert completed(fleet.run(scenario())) == [["w0"], ["w0"]]


def test_a_host_that_stands_still_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_ANSWER_LIMIT_S", 0.5)
    others = set(hosts())
    with Fleet(2) as fleet:
        ours = [pid for pid in hosts() if pid not in others]
        stopped = next(pid for pid in ours if host_index(pid) == 1)
        begin = Fleet._step_through

        def stop_in_mid_case(fleet: Fleet, case: Any) -> Any:
            os.kill(stopped, signal.SIGSTOP)
            return begin(fleet, case)

        monkeypatch.setattr(Fleet, "_step_through", stop_in_mid_case)
        with pytest.raises(EnvironmentFault, match="no answer from host 1 in one-write"):
            fleet.run(scenario(steps=100_000, deadline_ms=60_000))
    assert await_gone(ours) == []


def test_a_fleet_whose_launcher_stands_still_closes_all_the_same() -> None:
    with Fleet(1) as fleet:
        assert fleet._launcher is not None
        everything = descendants(os.getpid())
        os.kill(fleet._launcher.pid, signal.SIGSTOP)
        ours = [fleet._launcher.pid, *descendants(fleet._launcher.pid)]
        assert set(ours) <= set(everything)
    assert await_gone(ours) == []


def host_index(pid: int) -> int:
    """Which seat a host has, by the rank torchrun gave it."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return int(next(word for word in words if word.startswith(b"RANK=")).removeprefix(b"RANK="))


def test_a_deadlock_is_proven_long_before_the_deadline(two: Fleet) -> None:
    record = two.run(
        scenario(
            subject="sglang==0.5.18",
            deadline_ms=60_000,
            faults=[{"kind": "no-controller", "on": "leader"}],
        )
    )
    assert record.ended == "deadlock"


def test_at_the_deadline_every_stack_shows_where_the_rank_stood(two: Fleet) -> None:
    record = two.run(scenario(deadline_ms=300, faults=[{"kind": "never-ready", "on": {"pp": 1}}]))

    assert "in synchronize" in record.ranks[1].stack
    assert "in drain_sends" in record.ranks[0].stack
    assert not [
        event for rank in record.ranks for event in rank.events if isinstance(event, Raised)
    ]


def test_a_fleet_whose_folder_went_between_two_cases_is_replaced() -> None:
    with LastingFleet(lambda: Fleet(1)) as fleet:
        one = scenario().but(topology=Topology(1, 1))
        first = fleet._fleet
        assert isinstance(first, Fleet)
        shutil.rmtree(first.folder)  # as a cleaner of temporary files does
        with pytest.raises(EnvironmentFault, match="folder is gone"):
            fleet.run(one)
        assert completed(fleet.run(one)) == [["w0"]]


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_bad_input(port: int) -> None:
    with pytest.raises(BadInput, match=f"port {port}: give one from 0"):
        Fleet(1, port=port)


@pytest.mark.parametrize(
    "changes", [{"seed": 1 << 64}, {"storage": True, "sidecars": [{"name": "a"}, {"name": "a"}]}]
)
def test_what_no_rank_could_run_is_refused_with_the_scenario(changes: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        scenario(**changes)


def test_a_run_longer_than_its_deadline_is_no_hang_while_its_ranks_move(two: Fleet) -> None:
    # 40 steps, each begun 20 ms late: twice the deadline at the least.
    late = {"kind": "late", "on": {"pp": 0}, "ms": 20}
    record = two.run(scenario(steps=40, deadline_ms=400, faults=[late]))

    assert record.ended == "finished"
    assert completed(record) == [["w0"], ["w0"]]
