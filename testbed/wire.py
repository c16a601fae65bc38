"""What the controller and the hosts say to each other: named messages, in msgpack, over one socket
each.

Nothing executable travels. A host opens the connection and proves itself with the fleet's random
token; both sides refuse a testbed of another version.
"""

import contextlib
import hmac
import socket
import struct
from typing import Any

import msgspec

from testbed.model.events import Frame

MAX_MESSAGE = 1 << 29
"""Bytes; the largest is Ended, with a rank's whole log."""
GREETING_LIMIT = 4096
"""Bytes of a message between two who do not know each other yet."""

_LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the class's name travels as its tag."""


class Hello(Message, frozen=True, tag=True):
    """host -> controller, first: who it is. node, machine: the number of its node, and the
    machine's own name, where hosts are started elsewhere.
    """

    token: str
    version: str
    host: int
    pid: int
    node: int = 0
    machine: str = ""


class Welcome(Message, frozen=True, tag=True):
    """controller -> host: accepted."""


class Refused(Message, frozen=True, tag=True):
    """controller -> host: not accepted, and why, in one line."""

    why: str


class RunCase(Message, frozen=True, tag=True):
    """controller -> host: fork these ranks for this case. store: folder of the case's
    FolderStore; empty where the ranks share none, and ask the controller (StoreAsk).
    """

    case: int
    scenario: dict[str, Any]
    ranks: list[int]
    store: str
    log_bytes: int


class Ready(Message, frozen=True, tag=True):
    """host -> controller: the rank has built its groups and its cache and waits for Go."""

    case: int
    rank: int


class Go(Message, frozen=True, tag=True):
    """controller -> host: every rank is ready, take the first step."""

    case: int


class Done(Message, frozen=True, tag=True):
    """host -> controller: the rank has left its loop in order and waits for Release."""

    case: int
    rank: int


class Broke(Message, frozen=True, tag=True):
    """host -> controller: the subject raised on that rank. It stays, its connections open, until
    Stop.
    """

    case: int
    rank: int


class Release(Message, frozen=True, tag=True):
    """controller -> host: every rank is done, let them exit (before that, an exit would cut
    connections).
    """

    case: int


class Freeze(Message, frozen=True, tag=True):
    """controller -> host: stop the ranks where they are, so that none sees another one end."""

    case: int


class Stop(Message, frozen=True, tag=True):
    """controller -> host: have the ranks of this case dump their Python stacks, and end them."""

    case: int


class Ended(Message, frozen=True, tag=True):
    """host -> controller: the rank's process is gone. exit, signal: as in RankRecord. block: its
    log. output: what it printed. trouble: it ended by a failure of the testbed's own code, not the
    subject's. status: of a process that ended without a word on the link, else -1. capacity: bytes
    that the log can hold. frames: of ``stack``, innermost first. left: processes that it left
    behind and that were ended.
    """

    case: int
    rank: int
    exit: str
    signal: int
    dropped: int
    block: bytes
    stack: str
    output: str
    trouble: bool
    status: int = -1
    capacity: int = 0
    frames: list[Frame] = []
    left: int = 0


class Probe(Message, frozen=True, tag=True):
    """controller -> host: how far are your ranks? whole: send their logs along, of each rank from
    the byte on that ``known`` has for it.
    """

    case: int
    whole: bool
    known: dict[int, int] = {}


class Probed(Message, frozen=True, tag=True):
    """host -> controller: bytes its rank's log has, whether the rank is blocked, the part of the
    log that was asked for.
    """

    case: int
    rank: int
    committed: int
    blocked: bool
    block: bytes


class Trouble(Message, frozen=True, tag=True):
    """host -> controller: the host could not do what it was told, and why, in one line."""

    case: int
    why: str


class StoreAsk(Message, frozen=True, tag=True):
    """rank -> host -> controller: a call on the case's store. number: of the rank's asks, for the
    answer. op: set (one key), add (one key), wait (until every key is set; with the first one's
    value) or check.
    """

    case: int
    rank: int
    number: int
    op: str
    keys: list[str]
    value: bytes = b""
    amount: int = 0


class StoreAnswer(Message, frozen=True, tag=True):
    """controller -> host -> rank: the outcome of that ask. value: what wait found. count: the sum
    after add; for check whether (1 or 0) every key is set.
    """

    case: int
    rank: int
    number: int
    value: bytes = b""
    count: int = 0


class Bye(Message, frozen=True, tag=True):
    """controller -> host: the fleet is closing, exit."""


_ANY = (
    Hello
    | Welcome
    | Refused
    | RunCase
    | Ready
    | Go
    | Done
    | Broke
    | Release
    | Freeze
    | Stop
    | Ended
    | Probe
    | Probed
    | Trouble
    | StoreAsk
    | StoreAnswer
    | Bye
)
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_ANY)


class WireError(ConnectionError):
    """The other side broke the protocol: an oversized or unreadable message."""


class Wire:
    """One connection. Sends block; ``receive`` blocks for one message, None at the end of the
    stream.
    """

    def __init__(self, connection: socket.socket) -> None:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message. Raises OSError if the other side is gone."""
        payload = _encode(message)
        self._send_all(_LENGTH.pack(len(payload)) + payload)

    def receive(self, limit: int = MAX_MESSAGE) -> Any:
        """One message of at most ``limit`` bytes, or None if the other side has closed. Raises
        WireError, OSError.
        """
        header = self._exactly(_LENGTH.size)
        if header is None:
            return None
        payload = self._exactly(_length(header, limit))
        return None if payload is None else _decoded(payload)

    def _exactly(self, size: int) -> bytes | None:
        got = bytearray()
        while len(got) < size:
            part = self._receive_some(min(size - len(got), 1 << 20))
            if not part:
                return None
            got += part
        return bytes(got)

    def _send_all(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _receive_some(self, most: int) -> bytes:
        return self.socket.recv(most)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class Greeting:
    """The first message of one who is not known yet, put together from what comes. Never more than
    ``GREETING_LIMIT`` bytes of it are read.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._got = bytearray()

    def read(self) -> Any:
        """The message once it is whole, None while more is to come. Raises WireError (nothing that
        could become one, or it has closed) and OSError.
        """
        with contextlib.suppress(BlockingIOError):
            part = self.socket.recv(_LENGTH.size + GREETING_LIMIT - len(self._got))
            if not part:
                raise WireError("it closed the connection")
            self._got += part
        if len(self._got) < _LENGTH.size:
            return None
        length = _length(bytes(self._got[: _LENGTH.size]), GREETING_LIMIT)
        payload = bytes(self._got[_LENGTH.size :])
        if len(payload) > length:
            raise WireError("it did not wait for an answer")
        return _decoded(payload) if len(payload) == length else None


def _length(header: bytes, limit: int) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > limit:
        raise WireError(f"a message of {length} bytes is past the limit of {limit}")
    return int(length)


def _decoded(payload: bytes) -> Any:
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"unreadable message ({error})") from error


def same_token(left: str, right: str) -> bool:
    """Compare tokens without telling by the time it takes where they differ."""
    return hmac.compare_digest(left.encode(), right.encode())
