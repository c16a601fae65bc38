"""Starts one node's share of a fleet whose controller is elsewhere: torchrun with its hosts.

``python -m launchers.torchrun_node [--fleet-file FILE] [--node N]``, the same on every node but for
N, which only a fleet of several nodes needs. The fleet file says how many nodes and hosts there
are; it may also be named by ``TESTBED_FLEET_FILE``, or its contents be in ``TESTBED_FLEET``.

The torchruns of a fleet know nothing of each other, and none of them listens anywhere: their hosts
find the controller by the fleet file, and N says which seats of the fleet are theirs.

The hosts' output is kept until torchrun ends; what a host that failed said is then the one line on
standard error. However this process ends, torchrun and the hosts end with it.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launchers.torchrun import end, last_line, log_of, start, torchrun_command, torchrun_environment
from testbed.fleet import fleet_file
from testbed.fleet.fleet_file import FLEET_ENV, FLEET_FILE_ENV, NODE_ENV, FleetFile
from testbed.model.errors import BadInput, one_line
from testbed.model.exit_status import BAD_INPUT

HOST_WORDS = "testbed host"

_FILE_LIMIT_S = 600.0
_LOOK_S = 0.2
_TERM_GRACE_S = 5.0


def number_of(fleet: FleetFile, node: int | None) -> int:
    """This node's number. Raises BadInput where there is no such node, or it must be given."""
    if node is None and fleet.nodes > 1:
        raise BadInput(
            f"which of the fleet's {fleet.nodes} nodes is this? give --node N, "
            f"from 0 to {fleet.nodes - 1}"
        )
    if node is not None and not 0 <= node < max(fleet.nodes, 1):
        raise BadInput(f"--node {node}: give a number from 0 to {max(fleet.nodes, 1) - 1}")
    return node or 0


def await_fleet(path: Path) -> FleetFile:
    """The fleet file, once the controller has written it. Raises BadInput."""
    until = time.monotonic() + _FILE_LIMIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise BadInput(f"fleet file {path} did not come within {_FILE_LIMIT_S:.0f} s")
        time.sleep(_LOOK_S)  # on a shared file system no event tells
    return fleet_file.read(path)


def run(fleet: FleetFile, node: int, folder: Path) -> int:
    """Run torchrun to its end; returns its exit status, after one line if a host failed."""
    hosts = fleet.world // max(fleet.nodes, 1)
    environment = torchrun_environment(folder) | {NODE_ENV: str(node), "PYTHONPATH": _paths()}
    torchrun = start(torchrun_command(hosts, ["-m", fleet.hosts], folder), folder, environment)
    try:
        status = torchrun.wait()
    finally:
        end(torchrun, folder, _TERM_GRACE_S)
    if status != 0:
        told = _told(log_of(folder)) or f"torchrun ended with exit status {status}"
        print(one_line(told), file=sys.stderr)
    return status


def _paths() -> str:
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(dict.fromkeys(paths))


def _told(log: Path) -> str:
    """What a host said of its end; else torchrun's last words."""
    lines = log.read_text(errors="replace").splitlines()
    hosts = [line.strip() for line in lines if line.startswith(HOST_WORDS)]
    return hosts[0] if hosts else last_line(log)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 when the controller dismissed the hosts."""
    parser = argparse.ArgumentParser(prog="launchers.torchrun_node", description=__doc__)
    parser.add_argument("--fleet-file", type=Path, help=f"default: ${FLEET_FILE_ENV}")
    parser.add_argument("--node", type=int, metavar="N", help="the number of this node, from 0 on")
    options = parser.parse_args(argv)
    if options.fleet_file is not None:
        os.environ.pop(FLEET_ENV, None)
        os.environ[FLEET_FILE_ENV] = str(options.fleet_file.absolute())
    try:
        if FLEET_ENV not in os.environ and FLEET_FILE_ENV in os.environ:
            fleet = await_fleet(Path(os.environ[FLEET_FILE_ENV]))
        else:
            fleet = fleet_file.from_environment()
        node = number_of(fleet, options.node)
    except BadInput as error:
        print(f"testbed node: {error}", file=sys.stderr)
        return BAD_INPUT
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="testbed-node-") as folder:
        return run(fleet, node, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
