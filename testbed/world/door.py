"""Where hosts come in: the controller's listening socket, and who is let in."""

import contextlib
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testbed import __version__
from testbed.errors import EnvironmentFault
from testbed.world.wire import Hello, Refused, Welcome, Wire, WireError, same_token

# A host says who it is at once, and briefly; a stranger must not hold up the fleet.
_HELLO_LIMIT_S = 2.0
_HELLO_LIMIT = 4096
LAST_PORT = 65535
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Guest:
    """A host that was let in. node: how people are told of its machine."""

    host: int
    wire: Wire
    pid: int
    node: int = 0
    where: str = ""

    @property
    def told(self) -> str:
        """``node 1 (gpu-7, 10.0.0.7)``."""
        return f"node {self.node} ({self.where})"

    def is_again(self, other: "Guest") -> bool:
        """Whether ``other`` was an earlier connection of the same process."""
        return (self.pid, self.node, self.where) == (other.pid, other.node, other.where)


class Door:
    """Listens on ``host``:``port`` (0: any free one) for ``world`` hosts, each of which must bring
    the token. wire: what a host is talked to with. Raises EnvironmentFault if it cannot listen.
    """

    def __init__(
        self, host: str, port: int, world: int, wire: Callable[[socket.socket], Wire] = Wire
    ) -> None:
        self.token = secrets.token_hex(16)
        self._world = world
        self._wire = wire
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, port))
            self._listener.listen(2 * world)
        except OSError as error:
            self._listener.close()
            raise EnvironmentFault(
                f"port {port} on {host} cannot be used ({error.strerror}): give another one"
            ) from error
        self.host, self.port = self._listener.getsockname()[:2]

    def fileno(self) -> int:
        """For selectors: readable when somebody is at the door."""
        return self._listener.fileno()

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def admit(self, seated: Mapping[int, Guest]) -> Guest | None:
        """Let in who is at the door, or refuse it with one line here and one there (None)."""
        connection, address = self._listener.accept()
        connection.settimeout(_HELLO_LIMIT_S)
        wire = Wire(connection)
        try:
            hello = wire.receive(_HELLO_LIMIT)
        except (OSError, WireError):
            hello = None
        if not isinstance(hello, Hello) or not same_token(hello.token, self.token):
            _refuse(wire, address[0], "wrong token")
            return None
        where = f"{hello.machine}, {address[0]}" if hello.machine else address[0]
        connection.settimeout(None)
        guest = Guest(hello.host, self._wire(connection), hello.pid, hello.node, where)
        why = self._refusal(hello, guest, seated)
        if why:
            _refuse(guest.wire, address[0], why)
            return None
        try:
            guest.wire.send(Welcome())
        except OSError:  # gone again
            guest.wire.close()
            return None
        return guest

    def _refusal(self, hello: Hello, guest: Guest, seated: Mapping[int, Guest]) -> str:
        if hello.version != __version__:
            return f"testbed {hello.version} there, {__version__} here: install the same one"
        taken = hello.host in seated and not guest.is_again(seated[hello.host])
        if taken or not 0 <= hello.host < self._world:
            return f"there is no seat for host {hello.host}"
        return ""


def _refuse(wire: Wire, address: str, why: str) -> None:
    whence = "" if address == _LOOPBACK else f" from {address}"
    print(f"testbed: a host{whence} was refused: {why}", file=sys.stderr)
    with contextlib.suppress(OSError):  # it may not have waited for the answer
        wire.send(Refused(why))
    wire.close()
