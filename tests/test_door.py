"""Who is let in at the controller's door, and what a stranger there can do: nothing."""

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from testbed import __version__
from testbed.fleet import listener as door_module
from testbed.fleet.listener import Door, Guest
from testbed.wire import GREETING_LIMIT, Hello, Refused, Welcome, Wire

PATIENCE_S = 60  # ends a failing test only


@pytest.fixture
def door() -> Iterator[Door]:
    with contextlib.closing(Door("127.0.0.1", 0, 2)) as door:
        yield door


def caller(door: Door) -> socket.socket:
    connection = socket.create_connection((door.host, door.port))
    connection.settimeout(PATIENCE_S)
    return connection


def serve(door: Door, seated: dict[int, Guest], count: int) -> list[Guest]:
    """Admit until ``count`` guests have come."""
    came: list[Guest] = []
    with selectors.DefaultSelector() as waiting:
        waiting.register(door, selectors.EVENT_READ)
        until = time.monotonic() + PATIENCE_S
        while len(came) < count:
            assert time.monotonic() < until
            waiting.select(door.patience_s)
            came += door.admit({**seated, **{guest.host: guest for guest in came}})
    return came


def turned_away(door: Door, stranger: socket.socket) -> str:
    """Serve until the stranger has been answered; why it was refused."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(door, selectors.EVENT_READ)
        waiting.register(stranger, selectors.EVENT_READ, "answered")
        until = time.monotonic() + PATIENCE_S
        while "answered" not in {key.data for key, _ in waiting.select(door.patience_s)}:
            assert time.monotonic() < until
            assert door.admit({}) == []
    answer = Wire(stranger).receive()
    assert isinstance(answer, Refused)
    return answer.why


def close(*connections: socket.socket) -> None:
    for connection in connections:
        connection.close()


def hello(door: Door, host: int, **changes: str) -> Hello:
    return Hello(changes.get("token", door.token), changes.get("version", __version__), host, 1)


def test_a_stranger_who_takes_its_time_keeps_nobody_out(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "_GREETING_LIMIT_S", 10.0 * PATIENCE_S)
    strangers = [caller(door) for _ in range(5)]
    for stranger in strangers[1:]:
        stranger.sendall(struct.pack("<I", 100) + b"slow")
    hosts = [Wire(caller(door)) for _ in range(2)]
    for number, host in enumerate(hosts):
        host.send(hello(door, number))
    guests = serve(door, {}, 2)
    assert sorted(guest.host for guest in guests) == [0, 1]
    assert [type(host.receive()) for host in hosts] == [Welcome, Welcome]
    close(*strangers)
    close(*(wire.socket for wire in (*hosts, *(guest.wire for guest in guests))))


def test_the_time_is_for_the_whole_greeting_not_for_each_byte_of_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "_GREETING_LIMIT_S", 0.5)
    with caller(door) as stranger:
        stranger.sendall(struct.pack("<I", 4000))
        began = time.monotonic()
        with selectors.DefaultSelector() as waiting:
            waiting.register(stranger, selectors.EVENT_READ)
            while not waiting.select(0.05):  # a byte every 50 ms, well within 0.5 s each
                assert time.monotonic() < began + PATIENCE_S
                stranger.sendall(b"x")
                assert door.admit({}) == []
        answer = Wire(stranger).receive()
    assert answer == Refused("it did not say in time who it is")


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<I", GREETING_LIMIT + 1),  # nothing of what was announced is waited for
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 4) + b"\x00\x01\x02\x03",
        struct.pack("<I", 2000) + b"\x91" * 2000,  # nested 2000 deep
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["too long", "4 GiB", "garbage", "nested", "http"],
)
def test_who_says_something_else_is_refused_at_once(door: Door, said: bytes) -> None:
    with caller(door) as stranger:
        stranger.sendall(said)
        assert turned_away(door, stranger) == "wrong token"


def test_of_many_strangers_the_oldest_are_turned_away_and_a_host_comes_in(
    door: Door, capfd: pytest.CaptureFixture[str]
) -> None:
    strangers = []
    for _ in range(100):
        strangers.append(caller(door))
        door.admit({})
    assert len(door._strangers) == door_module._MOST_STRANGERS
    host = Wire(caller(door))
    host.send(hello(door, 0))
    (guest,) = serve(door, {}, 1)
    close(*strangers, host.socket, guest.wire.socket)


def test_two_nodes_that_claim_the_same_seats_are_told_what_to_do(door: Door) -> None:
    connections = [caller(door), caller(door)]
    wires = [Wire(connection) for connection in connections]
    for pid, wire in enumerate(wires):
        wire.send(Hello(door.token, __version__, 0, pid, 0, f"machine-{pid}"))
    (first,) = serve(door, {}, 1)
    other = next(wire for wire in wires if wire.socket.getsockname()[1] != peer_port(first))
    why = turned_away_seated(door, {0: first}, other)
    assert why.startswith("there is no seat for host 0: node 0 (machine-")
    assert why.endswith("has it, give each node its own --node")
    for each in (*wires, first.wire):
        each.close()


def peer_port(guest: Guest) -> int:
    port: int = guest.wire.socket.getpeername()[1]
    return port


def turned_away_seated(door: Door, seated: dict[int, Guest], wire: Wire) -> str:
    until = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as waiting:
        waiting.register(wire, selectors.EVENT_READ, "answered")
        waiting.register(door, selectors.EVENT_READ)
        while "answered" not in {key.data for key, _ in waiting.select(door.patience_s)}:
            assert time.monotonic() < until
            assert door.admit(seated) == []
    answer = wire.receive()
    assert isinstance(answer, Refused)
    return answer.why


def test_what_a_host_of_another_version_calls_itself_cannot_write_on_the_terminal(
    door: Door, capfd: pytest.CaptureFixture[str]
) -> None:
    with caller(door) as odd:
        Wire(odd).send(hello(door, 0, version="\x1b]0;9.9\x07\n"))
        why = turned_away(door, odd)
    assert "\x1b" not in why + capfd.readouterr().err
    assert why.startswith(r"testbed \x1b]0;9.9\x07 there")
