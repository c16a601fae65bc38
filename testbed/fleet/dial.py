"""How a host finds its controller, and finds it again after a link was down."""

import os
import socket
import time

from testbed import __version__
from testbed.fleet.fleet_file import NODE_ENV, FleetFile
from testbed.fleet.heartbeat import FarWire
from testbed.model.errors import one_line
from testbed.wire import GREETING_LIMIT, Hello, Refused, Welcome, Wire

# On its own machine, at once or never; elsewhere a link may be down for a while.
_NEAR_TIMEOUT_S = 10.0
_FAR_TIMEOUT_S = 1.0
_FAR_LIMIT_S = 120.0
_AGAIN_S = 0.2


def number_hosts(fleet: FleetFile) -> None:
    """Have the environment say what it would if one torchrun had started all hosts of the fleet;
    there is one on each node, which numbers its own from 0 on.
    """
    if fleet.nodes:
        node = int(os.environ.get(NODE_ENV, "0"))
        rank = node * (fleet.world // fleet.nodes) + host_index()
        numbers = {"RANK": rank, "WORLD_SIZE": fleet.world, "GROUP_RANK": node}
        os.environ.update({name: str(number) for name, number in numbers.items()})


def host_index() -> int:
    """Which seat of the fleet this host has, as torchrun numbers its workers."""
    return int(os.environ.get("RANK", "0"))


def call(fleet: FleetFile) -> Wire:
    """A connection over which this host was made welcome. Raises SystemExit with one line if there
    is no controller, or it refuses this host.
    """
    if fleet.nodes:
        return _call_far(fleet)
    try:
        connection = socket.create_connection((fleet.host, fleet.port), timeout=_NEAR_TIMEOUT_S)
    except OSError as error:
        raise _no_controller(fleet, error) from error
    connection.settimeout(None)
    wire = Wire(connection)
    if not _is_welcome(wire, Hello(fleet.token, __version__, host_index(), os.getpid())):
        raise _refused("it closed the connection")
    return wire


def _call_far(fleet: FleetFile) -> Wire:
    """Try until there is no hope. Between two fleets the controller lets hosts wait for their
    Welcome, for as long as it likes.
    """
    node, machine = int(os.environ.get("GROUP_RANK", "0")), socket.gethostname()
    hello = Hello(fleet.token, __version__, host_index(), os.getpid(), node, machine)
    until = time.monotonic() + _FAR_LIMIT_S
    why: OSError = ConnectionAbortedError("it closed the connection")
    while time.monotonic() < until:
        try:
            connection = socket.create_connection((fleet.host, fleet.port), timeout=_FAR_TIMEOUT_S)
        except ConnectionRefusedError as error:  # its machine is there, and it has ended
            raise _no_controller(fleet, error) from error
        except OSError as error:
            why = error
        else:
            wire = FarWire(connection)
            if _is_welcome(wire, hello):
                return wire
            wire.close()
            until = time.monotonic() + _FAR_LIMIT_S
        time.sleep(_AGAIN_S)  # nothing tells when a link is up again
    raise _no_controller(fleet, why)


def _is_welcome(wire: Wire, hello: Hello) -> bool:
    """False if the connection ended first. Raises SystemExit if the controller says no."""
    try:
        wire.send(hello)
        answer = wire.receive(GREETING_LIMIT)
    except OSError:
        return False
    if isinstance(answer, Refused):
        raise _refused(answer.why)
    return isinstance(answer, Welcome)


def _refused(why: str) -> SystemExit:
    return SystemExit(f"testbed host {host_index()}: refused by the controller: {one_line(why)}")


def _no_controller(fleet: FleetFile, error: OSError) -> SystemExit:
    why = error.strerror or error
    return SystemExit(f"testbed host {host_index()}: no controller at {fleet.at} ({why})")
