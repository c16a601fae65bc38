"""A fleet on two machines, each with a torchrun of its own: for tests and measurements."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.fleet import Fleet, LastingFleet, Meeting
from tests.processes import descendants, module
from tests.two_machines import Machine, two_machines

_ROOT = Path(__file__).resolve().parents[1]
_END_LIMIT_S = 300.0


@dataclass(frozen=True)
class TwoNodes:
    """``near`` has the controller's address and node 0, ``far`` node 1. nodes: their processes."""

    near: Machine
    far: Machine
    fleet: LastingFleet
    nodes: tuple[int, int]

    @property
    def gathered(self) -> Fleet:
        """The fleet as it is now, until the next loss."""
        assert isinstance(self.fleet._fleet, Fleet)
        return self.fleet._fleet

    def on_far(self) -> list[int]:
        """The hosts of node 1 and their ranks."""
        return [
            pid for pid in descendants(self.nodes[1]) if module(pid) == "testbed.fleet.fork_server"
        ]


@contextlib.contextmanager
def fleet_on_two_nodes(world: int, folder: Path) -> Iterator[TwoNodes]:
    """``world`` hosts, half of them on each machine. At the end all must leave in order."""
    file = folder / "fleet.json"
    with two_machines() as (near, far), contextlib.ExitStack() as ending:
        with near.inside():  # its listening socket stays there
            met = Meeting(world, 2, f"{near.address}:0", file)
        nodes = [_start_node(machine, file, node) for node, machine in enumerate((near, far))]
        for node in nodes:
            ending.callback(_end, node)
        with met, LastingFleet(lambda: Fleet(world, meeting=met)) as fleet:
            yield TwoNodes(near, far, fleet, (nodes[0].pid, nodes[1].pid))
        assert [node.wait(_END_LIMIT_S) for node in nodes] == [0, 0]


def _start_node(machine: Machine, file: Path, node: int) -> "subprocess.Popen[bytes]":
    words = ["-m", "launchers.torchrun_node", "--fleet-file", str(file), "--node", str(node)]
    return subprocess.Popen(machine.command(sys.executable, *words), cwd=_ROOT)


def _end(node: "subprocess.Popen[bytes]") -> None:
    node.terminate()
    node.wait()
