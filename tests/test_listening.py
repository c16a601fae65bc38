"""Nothing that a fleet starts listens where nobody asked for it: on a machine of its own, with an
address that strangers reach, every listening socket is looked at.
"""

import contextlib
import ipaddress
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.fleet import Fleet
from testbed.model.scenario import from_object
from tests.processes import await_true, descendants
from tests.two_machines import Machine, two_machines, why_not
from tests.two_nodes import fleet_on_two_nodes

ROOT = Path(__file__).resolve().parents[1]
_LISTENS = "0A"

IN_STEP = {
    "name": "in-step",
    "topology": {"pp": 2, "tp": 1},
    "steps": 8,
    "workload": {"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]},
}
NEVER_ENDING = {
    **IN_STEP,
    "name": "never-ending",
    "deadline_ms": 600_000,
    "faults": [{"kind": "never-ready", "on": {"pp": 1}}],
}
CONTROLLER = """
import json, sys
from testbed.model.scenario import from_object
from testbed.fleet import Fleet
with Fleet(2) as fleet:
    fleet.run(from_object(json.loads(sys.argv[1]), "test"))
"""
HARNESS = """
from testbed.measure.harness.torchrun import OneTorchrun
OneTorchrun(2).null_ms(1)
"""

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def listening(process: int | str) -> set[str]:
    """Addresses on which anything in that process's network listens, ``0.0.0.0`` for every one."""
    found = set()
    for table, words in (("tcp", 1), ("tcp6", 4)):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == _LISTENS:
                hexadecimal = local.partition(":")[0]
                parts = (hexadecimal[8 * at : 8 * at + 8] for at in range(words))
                packed = b"".join(bytes.fromhex(part)[::-1] for part in parts)
                found.add(str(ipaddress.ip_address(packed)))
    return found


@contextlib.contextmanager
def controller_on(machine: Machine) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", CONTROLLER, json.dumps(NEVER_ENDING)]
    with machine.inside():
        running = subprocess.Popen(command, cwd=ROOT)
    with running as controller:
        try:
            yield controller
        finally:
            controller.terminate()


def test_a_socket_that_listens_on_every_address_is_seen() -> None:
    with two_machines() as (machine, _), machine.inside():
        everywhere, here = (socket.create_server((at, 0)) for at in ("", machine.address))
        both = socket.create_server(("::", 0), family=socket.AF_INET6)
        with everywhere, here, both:
            assert listening("thread-self") == {"0.0.0.0", machine.address, "::"}


def test_a_fleet_listens_on_loopback_only() -> None:
    seen: set[str] = set()
    with two_machines() as (machine, _), controller_on(machine) as controller:

        def ranks_are_there() -> bool:
            assert controller.poll() is None
            seen.update(listening(controller.pid))
            # Below the controller: launcher, torchrun, two hosts, two ranks.
            return len(descendants(controller.pid)) >= 6

        await_true(ranks_are_there)
        for _ in range(20):
            ranks_are_there()
    assert seen == {"127.0.0.1"}


def test_a_launch_that_a_fleet_is_measured_against_listens_on_loopback_only() -> None:
    seen: set[str] = set()
    with two_machines() as (machine, _):
        with machine.inside():
            launch = subprocess.Popen([sys.executable, "-c", HARNESS], cwd=ROOT)
        while launch.poll() is None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                seen |= listening(launch.pid)
    assert launch.returncode == 0
    assert seen == {"127.0.0.1"}


def test_a_fleet_that_was_asked_to_listen_does_so_there_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = [set(), set()]
    begin = Fleet._step_through

    with fleet_on_two_nodes(4, tmp_path) as nodes:

        def look(fleet: Fleet, case: Any) -> Any:
            for number, node in enumerate(nodes.nodes):
                seen[number] |= listening(node)
            return begin(fleet, case)

        monkeypatch.setattr(Fleet, "_step_through", look)
        case = from_object({**IN_STEP, "topology": {"pp": 2, "tp": 2}}, "test")
        assert nodes.fleet.run(case).ended == "finished"
    assert seen == [{nodes.near.address}, {nodes.far.address}]
