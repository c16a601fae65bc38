"""Where hosts that are started elsewhere meet their controller.

The meeting outlasts the fleets that are made of its hosts: who is cut off comes back to the same
address with the same token, and the next fleet is gathered from whoever is there.
"""

import secrets
import selectors
import socket
import sys
import time
from pathlib import Path
from types import TracebackType

from testbed.fleet.fleet_file import HOSTS, FleetFile
from testbed.fleet.heartbeat import LOOK_S, FarWire, Silence
from testbed.fleet.listener import LAST_PORT, Door, Guest
from testbed.model.errors import BadInput, EnvironmentFault

# A queue for machines, images to pull: who is missing is told meanwhile, and Ctrl-C ends it.
_START_LIMIT_S = 600.0
_TELL_EVERY_S = 10.0
# How long after a loss the next case waits for the lost ones; every later case only for a moment,
# lest a suite takes hours over a node that stays away.
_RETURN_LIMIT_S = 30.0
_MOMENT_S = 1.0


class Meeting:
    """Listens on ``listen`` (HOST:PORT; port 0: any free one) for ``world`` hosts on ``nodes``
    machines, and writes ``fleet_file`` for them. hosts: the module that they are to run. A context
    manager: at its end the file goes.

    Raises BadInput for what cannot be, EnvironmentFault if it cannot listen or write.
    """

    def __init__(
        self, world: int, nodes: int, listen: str, fleet_file: Path, hosts: str = HOSTS
    ) -> None:
        if nodes < 1:
            raise BadInput(f"{nodes} nodes: give 1 or more")
        if nodes > world or world % nodes:
            raise BadInput(
                f"{world} hosts on {nodes} nodes: give a world that is a multiple of the nodes"
            )
        host, port = _address(listen)
        self._nodes = nodes
        self._path = fleet_file
        self._known: dict[int, Guest] = {}  # who sat where last, gone or not
        self._door = Door(host, port, world, FarWire)
        name = secrets.token_hex(4)
        self.file = FleetFile(
            self._door.host, self._door.port, self._door.token, world, nodes, name, hosts
        )
        try:
            self.file.write(fleet_file)
        except OSError as error:
            self._door.close()
            raise EnvironmentFault(
                f"fleet file {fleet_file} cannot be written: {error.strerror}"
            ) from error
        except BadInput:
            self._door.close()
            raise
        self._patient_until = time.monotonic() + _START_LIMIT_S

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more, and remove the fleet file."""
        self._door.close()
        self.file.remove(self._path)

    def missed(self) -> None:
        """A host was lost: from now on the next fleet waits for it, but not for ever."""
        self._patient_until = time.monotonic() + _RETURN_LIMIT_S

    def gather(self) -> list[Guest]:
        """All hosts, in their order. Raises EnvironmentFault that names who did not come."""
        seated: dict[int, Guest] = {}
        began = time.monotonic()
        until = max(self._patient_until, began + _MOMENT_S)
        told, tell_at = "", began + (_TELL_EVERY_S if self._known else 0)
        try:
            while len(seated) < self.file.world:
                now = time.monotonic()
                if now >= until:
                    raise EnvironmentFault(f"{self._missing(seated)} within {now - began:.0f} s")
                if now >= tell_at and self._missing(seated) != told:
                    told, tell_at = self._missing(seated), now + _TELL_EVERY_S
                    print(f"testbed: {told} yet", file=sys.stderr, flush=True)
                self._greet(seated)
        except BaseException:
            for guest in seated.values():
                guest.wire.close()
            raise
        return [seated[host] for host in range(self.file.world)]

    def _greet(self, seated: dict[int, Guest]) -> None:
        """Let in who is at the door within LOOK_S, and see who of the seated is gone again."""
        with selectors.DefaultSelector() as coming:
            coming.register(self._door, selectors.EVENT_READ)
            for guest in seated.values():
                coming.register(guest.wire, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in coming.select(LOOK_S)}
        for host, guest in list(seated.items()):
            # Before its first order a host says nothing: what is readable is the end.
            if guest.wire in ready or is_silent(guest):
                seated.pop(host).wire.close()
        for came in self._door.admit(seated):
            if came.host in seated:
                seated[came.host].wire.close()
            seated[came.host] = self._known[came.host] = came

    def _missing(self, seated: dict[int, Guest]) -> str:
        """``hosts 2,3 of 4 have not come to 10.0.0.1:4000 (node 1 (gpu-7, 10.0.0.7))``."""
        missing = [host for host in range(self.file.world) if host not in seated]
        named = {self._known[host].told for host in missing if host in self._known}
        nodes = {guest.node for guest in seated.values()}
        if named:
            who = f" ({', '.join(sorted(named))})"
        else:
            who = f" ({len(nodes)} of {self._nodes} nodes are there; fleet file {self._path})"
        are = "host" if len(missing) == 1 else "hosts"
        numbers = ",".join(map(str, missing))
        return f"{are} {numbers} of {self.file.world} did not come to {self.file.at}{who}"


def is_silent(guest: Guest) -> bool:
    """Whether the guest's machine is lost."""
    assert isinstance(guest.wire, FarWire)
    try:
        guest.wire.listen()
    except Silence:
        return True
    return False


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > LAST_PORT:
        raise BadInput(f"listen address {listen!r}: give HOST:PORT, port 0 for any free one")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"listen address {listen!r}: {host} is unknown ({error})") from error
    numeric = str(found[0][4][0])
    if numeric in ("0.0.0.0", "::"):
        raise BadInput(
            f"listen address {listen!r}: give the one address at which the nodes reach this machine"
        )
    return numeric, int(port)
