"""A rendezvous store for the ranks of one case on several machines: the controller holds it.

A call travels over the connections that are there: rank -> host -> controller and back. No rank
opens a connection of its own for it, looks up a name or needs to know the fleet's token, all of
which torch's TCPStore would do.
"""

import socket
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store  # where the type stubs have it

from testbed.wire import StoreAnswer, StoreAsk, Wire


class FarStore(Store):
    """``link``: the rank's end of a socket pair, its host at the other. One call at a time: a
    ``wait`` holds up other threads of the rank.

    ``get`` and ``wait`` raise DistStoreError after ``timeout``, all calls OSError if the host is
    gone.
    """

    def __init__(self, link: socket.socket, case: int, rank: int, timeout: timedelta) -> None:
        super().__init__()
        self._wire = Wire(link)
        self._case = case
        self._rank = rank
        self._timeout = timeout
        self._asked = 0
        self._one_at_a_time = threading.Lock()

    def set(self, key: str, value: str | bytes) -> None:
        """Publish ``value`` under ``key``."""
        self._ask("set", [key], value=value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """The value of ``key``, once somebody has set it."""
        return self._ask("wait", [key]).value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until every key is set."""
        self._ask("wait", list(keys), timeout=timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether every key is set."""
        return self._ask("check", list(keys)).count == 1

    def add(self, key: str, amount: int) -> int:
        """Add to the counter ``key`` (0 when absent); returns the sum. Atomic over ranks."""
        return self._ask("add", [key], amount=amount).count

    def has_extended_api(self) -> bool:
        """No append, multi_get or multi_set: torch then does without them."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """How long ``get`` and ``wait`` block by default."""
        self._timeout = timeout

    def _ask(
        self,
        op: str,
        keys: list[str],
        *,
        value: bytes = b"",
        amount: int = 0,
        timeout: timedelta | None = None,
    ) -> StoreAnswer:
        with self._one_at_a_time:
            self._asked += 1
            ask = StoreAsk(self._case, self._rank, self._asked, op, keys, value, amount)
            self._wire.socket.settimeout((timeout or self._timeout).total_seconds())
            self._wire.send(ask)
            while True:
                try:
                    answer = self._wire.receive()
                except TimeoutError:
                    raise dist.DistStoreError(f"nobody set {keys} in time") from None
                if answer is None:
                    raise ConnectionError("the host of this rank is gone")
                if answer.number == ask.number:  # else: of an ask that was given up
                    assert isinstance(answer, StoreAnswer)
                    return answer
