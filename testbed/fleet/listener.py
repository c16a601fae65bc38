"""Where hosts come in: the controller's listening socket, and who is let in."""

import contextlib
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testbed import __version__
from testbed.model.errors import EnvironmentFault, one_line
from testbed.wire import Greeting, Hello, Refused, Welcome, Wire, WireError, same_token

# A host says who it is at once, all of it within this time. However long a stranger takes, others
# are let in meanwhile; of those who have not said it yet no more than so many are borne with.
_GREETING_LIMIT_S = 2.0
_MOST_STRANGERS = 64
LAST_PORT = 65535
LOOPBACK = "127.0.0.1"
_LOOPBACK_LIMIT_S = 2.0


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
        # Who has come in and not yet said who it is, oldest first, and until when it may.
        self._strangers: dict[Greeting, float] = {}
        self._seen: dict[Greeting, str] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, port))
            self._listener.listen(2 * (world + _MOST_STRANGERS))
        except OSError as error:
            self._listener.close()
            raise EnvironmentFault(
                f"port {port} on {host} cannot be used ({error.strerror}): give another one"
            ) from error
        self._listener.setblocking(False)
        self.host, self.port = self._listener.getsockname()[:2]
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """For selectors: readable when there is something for ``admit`` to do."""
        return self._selector.fileno()

    @property
    def patience_s(self) -> float | None:
        """In how many seconds ``admit`` has to be called at the latest; None: not before the door
        is readable.
        """
        until = min(self._strangers.values(), default=None)
        return None if until is None else max(until - time.monotonic(), 0.0)

    def close(self) -> None:
        """Listen no more, and let go of who has not said who it is."""
        for stranger in list(self._strangers):
            self._forget(stranger).close()
        self._selector.close()
        self._listener.close()

    def admit(self, seated: Mapping[int, Guest]) -> list[Guest]:
        """Let in who is at the door and has said who it is, or refuse it with one line here and one
        there. Never waits for anybody.
        """
        admitted: dict[int, Guest] = {}
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                self._open()
            else:
                guest = self._hear(key.data, {**seated, **admitted})
                admitted.update({} if guest is None else {guest.host: guest})
        now = time.monotonic()
        late = [stranger for stranger, until in self._strangers.items() if until <= now]
        excess = list(self._strangers)[: max(len(self._strangers) - _MOST_STRANGERS, 0)]
        for stranger in dict.fromkeys(late + excess):
            self._turn_away(stranger, "it did not say in time who it is")
        return list(admitted.values())

    def _open(self) -> None:
        with contextlib.suppress(OSError):  # it is gone again
            connection, address = self._listener.accept()
            stranger = Greeting(connection)
            self._strangers[stranger] = time.monotonic() + _GREETING_LIMIT_S
            self._seen[stranger] = str(address[0])
            self._selector.register(connection, selectors.EVENT_READ, stranger)

    def _hear(self, stranger: Greeting, seated: Mapping[int, Guest]) -> Guest | None:
        try:
            hello = stranger.read()
        except (OSError, WireError):
            hello = Refused("")
        if hello is None:  # the rest is to come
            return None
        if not isinstance(hello, Hello) or not same_token(hello.token, self.token):
            self._turn_away(stranger, "wrong token")
            return None
        address = self._seen[stranger]
        connection = self._forget(stranger)
        connection.settimeout(None)
        where = one_line(f"{hello.machine}, {address}" if hello.machine else address)
        guest = Guest(hello.host, self._wire(connection), hello.pid, hello.node, where)
        why = self._refusal(hello, guest, seated)
        if why:
            _refuse(guest.wire, address, why)
            return None
        try:
            guest.wire.send(Welcome())
        except OSError:  # gone again
            guest.wire.close()
            return None
        return guest

    def _forget(self, stranger: Greeting) -> socket.socket:
        self._selector.unregister(stranger.socket)
        del self._strangers[stranger], self._seen[stranger]
        return stranger.socket

    def _turn_away(self, stranger: Greeting, why: str) -> None:
        # Without waiting: what is to be said fits into the connection's buffer.
        address = self._seen[stranger]
        _refuse(Wire(self._forget(stranger)), address, why)

    def _refusal(self, hello: Hello, guest: Guest, seated: Mapping[int, Guest]) -> str:
        if hello.version != __version__:
            there = one_line(hello.version)
            return f"testbed {there} there, {__version__} here: install the same one"
        if not 0 <= hello.host < self._world:
            return f"there is no seat for host {hello.host}"
        there_is = seated.get(hello.host)
        if there_is is not None and not guest.is_again(there_is):
            where = f": {there_is.told} has it" if there_is.where else ""
            return f"there is no seat for host {hello.host}{where}, give each node its own --node"
        return ""


def check_loopback() -> None:
    """Raise EnvironmentFault where this machine's processes cannot reach each other."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), _LOOPBACK_LIMIT_S).close()
    except OSError as error:
        why = error.strerror or error
        raise EnvironmentFault(
            f"{LOOPBACK} cannot be reached ({why}): is the loopback interface down? "
            "`ip link set lo up` brings it up"
        ) from error


def _refuse(wire: Wire, address: str, why: str) -> None:
    whence = "" if address == LOOPBACK else f" from {address}"
    print(f"testbed: a host{whence} was refused: {why}", file=sys.stderr)
    with contextlib.suppress(OSError):  # it may not have waited for the answer
        wire.send(Refused(why))
    wire.close()
