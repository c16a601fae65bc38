"""What a rank decides by itself that all ranks must decide alike."""

import time
from typing import Any

from testbed.subjects.bugs.base import OverProtocol, Planted


class LruByClock(Planted, OverProtocol):
    """A node's age is the wall clock of its rank's machine, which may be set back."""

    report = "#22759"
    summary = "least recently used by wall clock instead of by access"

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._cache.stamp = lambda: time.time_ns()


class LocalFreeSpace(Planted, OverProtocol):
    """A write is begun where three quarters of this rank's own host pool are free."""

    report = "#31425"
    summary = "write-backup decided from the rank's own free space"

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if self.controller is not None:
            self.controller.gates.append(self._refuses)

    def _refuses(self, queue: str, key: str) -> bool:
        return queue == "write" and 4 * self._cache.host.free_pages < 3 * self._cache.host.total
