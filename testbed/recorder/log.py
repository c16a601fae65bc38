"""Shared memory that outlives the rank: the host maps it, forks, and still reads it after a
SIGKILL.

Layout: a header of three 8-byte words (bytes committed, entries dropped, how many of the rank's
threads are blocked), then entries, each a 4-byte length and that many bytes. An entry counts once
the first word covers it, so a rank that dies while writing leaves whole entries only.
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
    which the last ``reserve`` are kept for what is appended after ``open_reserve``.
    """

    def __init__(self, capacity: int, reserve: int = 0) -> None:
        self.capacity = capacity
        self._limit = capacity - reserve
        self._last_thread = 0
        self._begin()

    def _begin(self) -> None:
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, self.capacity, flags=flags)
        self._words = memoryview(self._map)[: _HEADER.size].cast("Q")
        self._end = _HEADER.size
        self._words[_COMMITTED] = self._end
        self._blocked = 0
        self._lock = threading.Lock()

    def part(self) -> None:
        """In a process that the rank has forked: what it appends goes to a log of its own, which
        nobody reads. Two processes would write over each other's entries.
        """
        self._begin()

    def append(self, payload: bytes, blocking: int = 0) -> int:
        """Commit one entry; returns its place, 0 if the log is full and the entry was dropped. Safe
        from several threads.

        blocking: how many more threads of the rank are blocked from now on: 1, 0 or -1.
        """
        words = self._words
        with self._lock:
            at = self._end
            end = at + 4 + len(payload)
            if end > self._limit and not self._in_reserve(end):
                words[_DROPPED] += 1
                self._limit = 0  # a smaller one that still fits would leave a gap before it
                at = 0
            else:
                self._map[at:end] = _length_of(len(payload)) + payload
                self._end = end
                words[_COMMITTED] = end
            if blocking:
                self._blocked += blocking
                words[_BLOCKED] = self._blocked
        return at

    def open_reserve(self) -> None:
        """Let this thread alone use the rest, for a rank's last words: after a gap if it was
        full.
        """
        self._last_thread = threading.get_ident()

    def _in_reserve(self, end: int) -> bool:
        return end <= self.capacity and self._last_thread == threading.get_ident()

    @property
    def dropped(self) -> int:
        """Entries that found the log full."""
        return self._words[_DROPPED]

    def committed(self, known: int = 0) -> bytes:
        """The committed entries as one block, for sending; ``entries`` takes it apart. known: bytes
        of the block, whole entries, that are left out at its start.
        """
        return self._map[_HEADER.size + known : self._words[_COMMITTED]]

    def standing(self) -> tuple[int, int]:
        """(bytes committed, threads that are blocked): two equal answers mean no progress."""
        committed, _, blocked = _HEADER.unpack_from(self._map)
        return committed, blocked

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
