"""Starts one node's share of a fleet whose controller is elsewhere: torchrun with its hosts.

``python -m launchers.torchrun_node [--fleet-file FILE] [--rendezvous HOST[:PORT]] [--node N]``, the
same on every node but for N. The fleet file says how many nodes and hosts there are; it may also be
named by ``TESTBED_FLEET_FILE``, or its contents be in ``TESTBED_FLEET``. torchrun's own rendezvous
(c10d) is held by node 0, or where no N is given by the node that has the address HOST. A scheduler
that tells HOST in an environment variable names that one: ``--rendezvous-env NAME``, and
``--rendezvous-port PORT`` beside it.

The hosts' output is kept until torchrun ends; what a host that failed said is then the one line on
standard error. However this process ends, torchrun and the hosts end with it.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launchers.torchrun import last_line, torchrun_command
from testbed.death import die_with_parent
from testbed.errors import BadInput
from testbed.world import fleet_file
from testbed.world.fleet_file import FLEET_ENV, FLEET_FILE_ENV, FleetFile

DEFAULT_PORT = 29400
HOST_WORDS = "testbed host"

_FILE_LIMIT_S = 600.0
_LOOK_S = 0.2
_TERM_GRACE_S = 5.0
# The agents' own store: while it cannot be reached they stand still, and their hosts need them for
# nothing. Longer than any link may be down before the hosts themselves give up.
_STORE_TIMEOUT_S = 600


def node_command(fleet: FleetFile, rendezvous: str, node: int | None) -> list[str]:
    """torchrun for this node of the fleet. Raises BadInput without a rendezvous for several."""
    if fleet.nodes == 1:
        return torchrun_command(fleet.world, fleet.hosts)
    if not rendezvous:
        raise BadInput("several nodes need a rendezvous: give --rendezvous HOST[:PORT] of node 0")
    host, port = _endpoint(rendezvous)
    holds = _is_here(host) if node is None else node == 0
    return torchrun_command(
        fleet.world // fleet.nodes,
        fleet.hosts,
        nodes=fleet.nodes,
        endpoint=f"{host}:{port}",
        own_address=own_address(fleet),
        more=[
            f"--rdzv-id=testbed-{fleet.name}",
            f"--rdzv-conf=is_host={str(holds).lower()},read_timeout={_STORE_TIMEOUT_S}",
        ],
    )


def own_address(fleet: FleetFile) -> str:
    """This node's address on the way to the controller."""
    family = socket.AF_INET6 if ":" in fleet.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((fleet.host, fleet.port))  # sends nothing: only the route is looked up
        except OSError as error:
            raise BadInput(f"no way to the controller at {fleet.at}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def await_fleet(path: Path) -> FleetFile:
    """The fleet file, once the controller has written it. Raises BadInput."""
    until = time.monotonic() + _FILE_LIMIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise BadInput(f"fleet file {path} did not come within {_FILE_LIMIT_S:.0f} s")
        time.sleep(_LOOK_S)  # on a shared file system no event tells
    return fleet_file.read(path)


def run(command: Sequence[str], folder: Path) -> int:
    """Run torchrun to its end; returns its exit status, after one line if a host failed."""
    log = folder / "torchrun.log"
    supervisor = os.getpid()
    with log.open("wb") as output:
        torchrun = subprocess.Popen(
            command,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(supervisor, signal.SIGTERM),
        )
    try:
        status = torchrun.wait()
    finally:
        torchrun.terminate()
        try:
            torchrun.wait(_TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            torchrun.kill()
    if status != 0:
        print(_told(log) or f"torchrun ended with exit status {status}", file=sys.stderr)
    return status


def _environment(folder: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OMP_NUM_THREADS": "1",
        # Every connection to torchrun's store makes a reverse look-up, which may stall for 5 s.
        "RES_OPTIONS": "timeout:1 attempts:1",
        "TMPDIR": str(folder),
        "PYTHONUNBUFFERED": "1",
    }


def _told(log: Path) -> str:
    """What a host said of its end; else torchrun's last words."""
    lines = log.read_text(errors="replace").splitlines()
    hosts = [line.strip() for line in lines if line.startswith(HOST_WORDS)]
    return hosts[0] if hosts else last_line(log)


def _endpoint(rendezvous: str) -> tuple[str, int]:
    host, _, port = rendezvous.partition(":")
    if not host or not (port or "0").isdigit():
        raise BadInput(f"rendezvous {rendezvous!r}: give HOST or HOST:PORT")
    return host, int(port or DEFAULT_PORT)


def _is_here(host: str) -> bool:
    """Whether this machine has that address."""
    try:
        with socket.create_server((host, 0)):
            return True
    except OSError:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 when the controller dismissed the hosts."""
    parser = argparse.ArgumentParser(prog="launchers.torchrun_node", description=__doc__)
    parser.add_argument("--fleet-file", type=Path, help=f"default: ${FLEET_FILE_ENV}")
    parser.add_argument("--rendezvous", default="", help="HOST[:PORT] of node 0")
    parser.add_argument("--rendezvous-env", metavar="NAME", help="the variable that holds HOST")
    parser.add_argument("--rendezvous-port", type=int, metavar="PORT", default=DEFAULT_PORT)
    parser.add_argument("--node", type=int, help="the number of this node, from 0 on")
    options = parser.parse_args(argv)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    if options.fleet_file is not None:
        os.environ.pop(FLEET_ENV, None)
        os.environ[FLEET_FILE_ENV] = str(options.fleet_file.absolute())
    try:
        if FLEET_ENV not in os.environ and FLEET_FILE_ENV in os.environ:
            fleet = await_fleet(Path(os.environ[FLEET_FILE_ENV]))
        else:
            fleet = fleet_file.from_environment()
        rendezvous = options.rendezvous
        if options.rendezvous_env is not None:
            host = os.environ.get(options.rendezvous_env, "")
            rendezvous = f"{host}:{options.rendezvous_port}" if host else ""
        command = node_command(fleet, rendezvous, options.node)
    except BadInput as error:
        print(f"testbed node: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="testbed-node-") as folder:
        return run(command, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
