"""Hosts that somebody else started: who is let in, who is missing, what a lost one costs."""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.fleet import Fleet, LastingFleet, Meeting, fleet_file
from testbed.fleet import remote as meeting
from testbed.fleet.fleet_file import FLEET_ENV, FLEET_FILE_ENV, FleetFile
from testbed.fleet.interface import interface_of
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.scenario import Scenario, from_object
from testbed.model.verdict import Outcome
from testbed.oracles import judge
from testbed.sessions import nodes
from tests.processes import await_gone, await_true, cmdline, descendants

ROOT = Path(__file__).resolve().parents[1]
LOOPBACK = "127.0.0.1:0"
HOST = "from testbed.fleet.fork_server import main; main()"
# What a host does first, without the seconds that torch takes.
CALLER = """
from testbed.fleet import fleet_file
from testbed.fleet.dial import call
call(fleet_file.from_environment())
"""
OF_ANOTHER_VERSION = f"import testbed; testbed.__version__ = '9.9'{CALLER}"
PATIENCE_S = 300

Host = subprocess.Popen[str]


def scenario(**changes: Any) -> Scenario:
    data = {
        "name": "one-write",
        "topology": {"pp": 2, "tp": 1},
        "steps": 4,
        "workload": {"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]},
    }
    return from_object({**data, **changes}, "test")


def start_host(index: int, code: str = HOST, **environment: str) -> Host:
    """A host as torchrun would start it."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "RANK": str(index), "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def last_words(host: Host) -> str:
    """What a host said at its end; waits for it."""
    _, said = host.communicate(timeout=PATIENCE_S)
    return said.strip()


@contextlib.contextmanager
def hosts_of(path: Path, count: int) -> Iterator[list[Host]]:
    started = [start_host(index, **{FLEET_FILE_ENV: str(path)}) for index in range(count)]
    try:
        yield started
    finally:
        for host in started:
            host.kill()
            host.communicate()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.json"


def test_hosts_that_come_run_a_case_without_a_folder_between_them_and_leave_when_dismissed(
    file: Path,
) -> None:
    with Meeting(2, 1, LOOPBACK, file) as met, hosts_of(file, 2) as hosts:
        with Fleet(2, meeting=met, oversubscribe=True) as fleet:
            for topology in ({"pp": 2, "tp": 1}, {"pp": 1, "tp": 1}, {"pp": 2, "tp": 2}):
                assert fleet.run(scenario(topology=topology)).ended == "finished"
            assert list(fleet.folder.iterdir()) == []
        assert [last_words(host) for host in hosts] == ["", ""]
        assert [host.returncode for host in hosts] == [0, 0]


def test_the_fleet_file_is_its_owners_alone_and_goes_with_the_meeting(file: Path) -> None:
    with Meeting(2, 1, LOOPBACK, file) as met:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert fleet_file.read(file) == met.file
    assert not file.exists()


def test_a_newer_meetings_file_is_left_alone(file: Path) -> None:
    with Meeting(2, 1, LOOPBACK, file), Meeting(2, 1, LOOPBACK, file) as newer:
        pass
    assert not file.exists()
    with Meeting(2, 1, LOOPBACK, file) as newer:
        with Meeting(1, 1, LOOPBACK, file):
            newer.file.write(file)
        assert fleet_file.read(file) == newer.file


def test_the_token_is_on_no_command_line(file: Path) -> None:
    command = [sys.executable, "-m", "launchers.torchrun_node", "--fleet-file", str(file)]
    with Meeting(1, 1, LOOPBACK, file) as met:
        node = subprocess.Popen(command, cwd=ROOT)
        with Fleet(1, meeting=met) as fleet:
            fleet.run(scenario(topology={"pp": 1, "tp": 1}))
            started = [node.pid, *descendants(node.pid)]
            assert len(started) >= 3  # the launcher, torchrun, the host
            assert not [pid for pid in started if met.file.token.encode() in cmdline(pid)]
        assert node.wait(PATIENCE_S) == 0


def test_the_environment_may_hold_what_the_file_says(file: Path) -> None:
    with Meeting(1, 1, LOOPBACK, file) as met:
        contents = file.read_text()
        file.unlink()
        host = start_host(0, **{FLEET_ENV: contents})
        with Fleet(1, meeting=met) as fleet:
            assert fleet.run(scenario(topology={"pp": 1, "tp": 1})).ended == "finished"
        assert (last_words(host), host.returncode) == ("", 0)


def test_who_did_not_come_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_START_LIMIT_S", 0.0)
    with Meeting(4, 2, LOOPBACK, file) as met:
        none = r"hosts 0,1,2,3 of 4 did not come to .* \(0 of 2 nodes are there; fleet file .*\)"
        with pytest.raises(EnvironmentFault, match=none):
            Fleet(4, meeting=met)


def test_a_host_with_a_wrong_token_is_refused_with_one_line_on_both_sides(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = refused_host(file, CALLER, token="wrong")
    assert refused == "testbed host 0: refused by the controller: wrong token"
    assert lines_of(capfd) == ["testbed: a host was refused: wrong token"]


def test_a_host_of_another_version_is_refused_with_one_line_on_both_sides(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    why = "testbed 9.9 there, 0.1.0 here: install the same one"
    assert refused_host(file, OF_ANOTHER_VERSION) == (
        f"testbed host 0: refused by the controller: {why}"
    )
    assert lines_of(capfd) == [f"testbed: a host was refused: {why}"]


def test_a_host_without_a_seat_is_refused_with_one_line_on_both_sides(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    why = "there is no seat for host 7"
    assert (
        refused_host(file, CALLER, index=7) == f"testbed host 7: refused by the controller: {why}"
    )
    assert lines_of(capfd) == [f"testbed: a host was refused: {why}"]


def refused_host(file: Path, code: str, *, index: int = 0, **changed: str) -> str:
    """What a host says that the controller does not let in."""
    with Meeting(1, 1, LOOPBACK, file) as met:
        contents = {**json.loads(file.read_text()), **changed}
        odd = start_host(index, code, **{FLEET_ENV: json.dumps(contents)})
        while odd.poll() is None:
            met._greet({})
    assert odd.returncode == 1
    return last_words(odd)


def lines_of(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What the controller said."""
    return capfd.readouterr().err.splitlines()


def test_a_host_that_cannot_reach_the_controller_says_so_in_one_line(file: Path) -> None:
    with Meeting(1, 1, LOOPBACK, file) as met:
        contents = file.read_text()
    host = start_host(0, CALLER, **{FLEET_ENV: contents})
    told = f"testbed host 0: no controller at {met.file.at} (Connection refused)"
    assert last_words(host) == told
    assert host.returncode == 1


def test_a_node_passes_on_what_its_host_said_in_one_line(file: Path) -> None:
    with Meeting(1, 1, LOOPBACK, file) as met:
        pass
    met.file.write(file)
    node = subprocess.run(
        [sys.executable, "-m", "launchers.torchrun_node", "--fleet-file", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert node.returncode == 1
    assert node.stdout == ""
    assert node.stderr == (f"testbed host 0: no controller at {met.file.at} (Connection refused)\n")


def test_a_host_that_dies_in_mid_case_is_an_error_that_names_it_and_its_successor_is_let_in(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Fleet._step_through

    with Meeting(2, 1, LOOPBACK, file) as met, hosts_of(file, 2) as hosts:
        with LastingFleet(lambda: Fleet(2, meeting=met)) as fleet:

            def kill_in_mid_case(fleet: Fleet, case: Any) -> Any:
                hosts[1].kill()
                return begin(fleet, case)

            with monkeypatch.context() as patched:
                patched.setattr(Fleet, "_step_through", kill_in_mid_case)
                verdict = judge(fleet.run(scenario(steps=100_000, deadline_ms=600_000)))
            assert verdict.outcome is Outcome.ERROR
            assert (
                f"host 1 of node 0 ({socket.gethostname()}, 127.0.0.1) is gone" in verdict.summary
            )

            hosts.append(start_host(1, **{FLEET_FILE_ENV: str(file)}))
            assert fleet.run(scenario()).ended == "finished"
        assert [last_words(hosts[0]), last_words(hosts[2])] == ["", ""]


CONTROLLER = """
import json, sys
from pathlib import Path
from testbed.model.scenario import from_object
from testbed.fleet import Fleet, Meeting
with Meeting(1, 1, "127.0.0.1:0", Path(sys.argv[1])) as met:
    with Fleet(1, oversubscribe=True, meeting=met) as fleet:
        fleet.run(from_object(json.loads(sys.argv[2]), "test"))
"""
BLOCKED_FOR_EVER = {
    "name": "blocked",
    "topology": {"pp": 2, "tp": 1},
    "steps": 4,
    "deadline_ms": 600_000,
    "workload": {"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]},
    "faults": [{"kind": "never-ready", "on": {"pp": 1}}],
}


def test_hosts_end_with_their_ranks_when_the_controller_is_killed(file: Path) -> None:
    command = [sys.executable, "-c", CONTROLLER, str(file), json.dumps(BLOCKED_FOR_EVER)]
    controller = subprocess.Popen(command, cwd=ROOT)
    try:
        await_true(file.exists)
        with start_host(0, **{FLEET_FILE_ENV: str(file)}) as host:
            await_true(lambda: len(descendants(host.pid)) == 2)
            left = [host.pid, *descendants(host.pid)]
            controller.kill()
            assert "no controller at" in last_words(host)
            assert await_gone(left) == []
    finally:
        controller.kill()
        controller.wait()


@pytest.mark.parametrize(
    ("world", "count", "listen", "wrong"),
    [
        (4, 3, LOOPBACK, "4 hosts on 3 nodes: give a world that is a multiple"),
        (4, 0, LOOPBACK, "0 nodes: give 1 or more"),
        (4, 2, "4711", "give HOST:PORT"),
        (4, 2, "127.0.0.1:70000", "give HOST:PORT"),
        (4, 2, "0.0.0.0:0", "the one address at which the nodes reach this machine"),
        (4, 2, "no such name:0", "is unknown"),
    ],
)
def test_what_nobody_could_come_to_is_refused(
    file: Path, world: int, count: int, listen: str, wrong: str
) -> None:
    with pytest.raises(BadInput, match=wrong):
        Meeting(world, count, listen, file)
    assert not file.exists()


@pytest.mark.parametrize("contents", [b"", b"my thesis", b"{}", b"\xff\x00"])
def test_a_file_that_is_no_fleet_file_is_never_written_over(file: Path, contents: bytes) -> None:
    file.write_bytes(contents)
    with pytest.raises(BadInput, match="there is another file, which stays: give another path"):
        Meeting(1, 1, LOOPBACK, file)
    assert file.read_bytes() == contents
    assert list(file.parent.iterdir()) == [file]


def test_a_link_a_folder_and_a_device_are_never_written_over(tmp_path: Path) -> None:
    folder, link, device = tmp_path / "folder", tmp_path / "link", Path(os.devnull)
    folder.mkdir()
    link.symlink_to(tmp_path / "nothing")
    for path in (folder, link, device):
        with pytest.raises(BadInput, match="which stays"):
            fleet_file.check_place(path)


def test_a_file_that_somebody_put_in_its_place_is_never_deleted(file: Path) -> None:
    with Meeting(1, 1, LOOPBACK, file):
        file.write_text("my thesis")
    assert file.read_text() == "my thesis"


def test_a_fleet_file_that_a_killed_controller_left_is_replaced(file: Path) -> None:
    FleetFile("127.0.0.1", 1, "old", 1).write(file)
    with Meeting(1, 1, LOOPBACK, file) as met:
        assert fleet_file.read(file) == met.file


@pytest.mark.parametrize("place", ["a-file/fleet.json", "a-file/folder/fleet.json", "x" * 300])
def test_a_folder_that_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "a-file").write_text("")
    options = {"listen": LOOPBACK, "nodes": None, "fleet_file": str(tmp_path / place)}
    with pytest.raises(BadInput, match="cannot be written"):
        nodes.check(options)


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"fleet file .* cannot be written: No such file"):
        Meeting(1, 1, LOOPBACK, tmp_path / "no-folder" / "fleet.json")


@pytest.mark.parametrize("name", ["nodes", "fleet_file"])
def test_options_that_say_nothing_without_an_address_are_refused(name: str) -> None:
    options = {"listen": None, "nodes": None, "fleet_file": None, name: "2"}
    with pytest.raises(BadInput, match="says nothing without --listen"):
        nodes.check(options)


@pytest.mark.parametrize("data", ["", "{}", '{"host": "a", "port": "b", "token": "", "world": 1}'])
def test_a_file_that_is_none_is_bad_input(file: Path, data: str) -> None:
    file.write_text(data)
    with pytest.raises(BadInput, match=r"fleet\.json is no fleet file"):
        fleet_file.read(file)


def test_an_address_is_told_as_people_write_it() -> None:
    assert FleetFile("10.0.0.1", 40, "", 1).at == "10.0.0.1:40"
    assert FleetFile("fd00::2", 40, "", 1).at == "[fd00::2]:40"


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.200") == ""
