"""A wire to another machine, which may vanish without closing anything: a cut link, a lost node.

The heartbeat is the kernel's. Each side's kernel probes an idle connection every second (TCP
keepalive), the other side's kernel answers, and TCP_INFO tells when it last did. So a machine that
is merely loaded, or a host that is busy forking, is never taken for a lost one: silence means that
no packet at all came back. Both ends look for it in the loops they have; no thread, no messages.
"""

import socket
import struct

from testbed.wire import Wire

# A probe a second, the same again for the kernel's timers and the way there and back, and still
# noticed within 2 s: LOOK_S is how often both sides look.
SILENCE_S = 1.6
LOOK_S = 0.2

_PROBE_EVERY_S = 1
# After as many the kernel itself ends the connection, should nobody have looked.
_PROBES_UNANSWERED = 5

# struct tcp_info of linux/tcp.h: eight bytes, then 32-bit words; the 13th is tcpi_last_ack_recv, in
# milliseconds.
_LAST_HEARD = struct.Struct("@56xI")


class Silence(ConnectionError):
    """Nothing came back from the other machine for longer than SILENCE_S."""


class FarWire(Wire):
    """As Wire; ``send`` and ``receive`` raise Silence where they would wait for a lost machine."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, _PROBE_EVERY_S),
            (socket.TCP_KEEPINTVL, _PROBE_EVERY_S),
            (socket.TCP_KEEPCNT, _PROBES_UNANSWERED),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.settimeout(LOOK_S)

    @property
    def silent_s(self) -> float:
        """Seconds since the other machine's kernel last answered anything."""
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_HEARD.size)
        (milliseconds,) = _LAST_HEARD.unpack(info)
        return float(milliseconds) / 1e3

    def listen(self) -> None:
        """Raise Silence if the other machine is lost."""
        silent_s = self.silent_s
        if silent_s > SILENCE_S:
            raise Silence(f"nothing heard for {silent_s:.1f} s")

    def _send_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self.socket.send(left) :]
            except TimeoutError:
                self.listen()
            except OSError as error:  # EHOSTUNREACH, say: a lost connection like any other
                raise ConnectionError(str(error)) from error

    def _receive_some(self, most: int) -> bytes:
        while True:
            try:
                return self.socket.recv(most)
            except TimeoutError:
                self.listen()
            except OSError as error:
                raise ConnectionError(str(error)) from error
