"""A rendezvous store for the ranks of one case on one machine: a folder, one file per key.

torch's own FileStore polls every 10 ms, and gloo waits on it once per peer and group: half the cost
of a case. Here a value appears by an atomic rename, and a reader looks again soon: the later, the
more ranks share the cores of the machine.
"""

import fcntl
import os
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store  # where the type stubs have it

_POLL_S_PER_RANK = 0.00005


class FolderStore(Store):
    """``folder`` must exist, be empty when the first of ``ranks`` comes, and be seen by all.

    ``get`` and ``wait`` raise DistStoreError after ``timeout``.
    """

    def __init__(self, folder: str, ranks: int, timeout: timedelta) -> None:
        super().__init__()
        self._folder = folder
        self._timeout = timeout
        self._poll_s = ranks * _POLL_S_PER_RANK

    def set(self, key: str, value: str | bytes) -> None:
        """Publish ``value`` under ``key``, whole or not at all."""
        path = self._path(key)
        draft = f"{path}.{os.getpid()}"
        with open(draft, "wb", 0) as file:
            file.write(value.encode() if isinstance(value, str) else value)
        os.rename(draft, path)

    def get(self, key: str) -> bytes:
        """The value of ``key``, once somebody has set it."""
        self.wait([key])
        with open(self._path(key), "rb", 0) as file:
            return file.read()

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until every key is set."""
        limit = time.monotonic() + (timeout or self._timeout).total_seconds()
        for key in keys:
            path = self._path(key)
            while not os.path.exists(path):
                if time.monotonic() > limit:
                    raise dist.DistStoreError(f"nobody set {key!r} in time")
                time.sleep(self._poll_s)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether every key is set."""
        return all(os.path.exists(self._path(key)) for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to the counter ``key`` (0 when absent); returns the sum. Atomic over processes."""
        with open(os.open(self._path(key), os.O_RDWR | os.O_CREAT, 0o600), "r+b", 0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            total = int(file.read() or b"0") + amount
            file.seek(0)
            file.write(str(total).encode())
        return total

    def has_extended_api(self) -> bool:
        """No append, multi_get or multi_set: torch then does without them."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """How long ``get`` and ``wait`` block by default."""
        self._timeout = timeout

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key.replace('%', '%25').replace('/', '%2F')}"
