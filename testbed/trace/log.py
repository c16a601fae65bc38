"""Shared memory that outlives the rank: the host maps it, forks, and still reads it after a
SIGKILL.

Layout: a header of three 8-byte words (bytes committed, entries dropped, place of the entry the
rank is blocked in, 0 if it runs), then entries, each a 4-byte length and that many bytes. An entry
counts once the first word covers it, so a rank that dies while writing leaves whole entries only.
The log never wraps: a full one drops all that follows and says how much, since oracles need the
start. The memory is taken as it is written to: a large log that stays empty costs nothing.
"""

import mmap
import struct
import threading
from collections.abc import Iterator

_HEADER = struct.Struct("=QQQ")
_LENGTH = struct.Struct("<I")
_COMMITTED, _DROPPED, _BLOCKED = range(3)
_length_of = _LENGTH.pack


# Linux: pages are not counted against the machine's memory before they are used. Not in ``mmap``.
_MAP_NORESERVE = 0x4000


class SharedLog:
    """An append-only log of byte entries in anonymous shared memory, ``capacity`` bytes in all, of
    which the last ``reserve`` are kept for what is appended after ``open_reserve``. Several threads
    may append.
    """

    def __init__(self, capacity: int, reserve: int = 0) -> None:
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, capacity, flags=flags)
        self._words = memoryview(self._map)[: _HEADER.size].cast("Q")
        self._end = _HEADER.size
        self._words[_COMMITTED] = self._end
        self._limit = capacity - reserve
        self._lock = threading.Lock()
        self.capacity = capacity

    def append(self, payload: bytes, blocks: bool | None = None) -> int:
        """Commit one entry; returns its place, 0 if the log is full and the entry was dropped.

        blocks: the rank is blocked in it from now on (True), or runs again (False).
        """
        with self._lock:
            at = self._end
            end = at + 4 + len(payload)
            words = self._words
            if end > self._limit:
                words[_DROPPED] += 1
                self._limit = 0  # a smaller one that still fits would leave a gap before it
                at = 0
            else:
                self._map[at:end] = _length_of(len(payload)) + payload
                self._end = end
                words[_COMMITTED] = end
            if blocks is not None:
                words[_BLOCKED] = at if blocks else 0
            return at

    def open_reserve(self) -> None:
        """Let what follows use the rest: a rank's last words, after a gap if it was full."""
        self._limit = self.capacity

    @property
    def dropped(self) -> int:
        """Entries that found the log full."""
        return self._words[_DROPPED]

    def committed(self, known: int = 0) -> bytes:
        """The committed entries as one block, for sending; ``entries`` takes it apart. known: bytes
        of the block, whole entries, that are left out at its start.
        """
        return self._map[_HEADER.size + known : self._words[_COMMITTED]]

    def blocked_in(self) -> tuple[int, bytes | None]:
        """(bytes committed, the entry the rank is blocked in or None): two equal answers mean no
        progress.
        """
        committed, _, at = _HEADER.unpack_from(self._map)
        if at == 0:
            return committed, None
        (length,) = _LENGTH.unpack_from(self._map, at)
        return committed, self._map[at + 4 : at + 4 + length]

    def close(self) -> None:
        """Give the memory back."""
        self._words.release()
        self._map.close()


def entries(block: bytes) -> Iterator[bytes]:
    """The entries of a block that ``committed`` returned, oldest first."""
    at = 0
    while at < len(block):
        (length,) = _LENGTH.unpack_from(block, at)
        yield block[at + 4 : at + 4 + length]
        at += 4 + length
