"""Shared memory that outlives the rank: the host maps it, forks, and still reads it after a
SIGKILL.

Layout: a header of three 8-byte words (bytes committed, entries dropped, place of the entry the
rank is blocked in, 0 if it runs), then entries, each a 4-byte length and that many bytes. An entry
counts once the first word covers it, so a rank that dies while writing leaves whole entries only.
The log never wraps: a full one drops what follows and says how much, since oracles need the start.
"""

import mmap
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<QQQ")
_WORD = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
_DROPPED_AT, _BLOCKED_AT = 8, 16


class SharedLog:
    """An append-only log of byte entries in anonymous shared memory, ``capacity`` bytes in all."""

    def __init__(self, capacity: int) -> None:
        self._map = mmap.mmap(-1, capacity)
        self._capacity = capacity
        self._end = _HEADER.size
        self._dropped = 0
        _WORD.pack_into(self._map, 0, self._end)

    def append(self, payload: bytes) -> int:
        """Commit one entry; returns its place, 0 if the log is full and the entry was dropped."""
        at = self._end
        end = at + 4 + len(payload)
        if end > self._capacity:
            self._dropped += 1
            _WORD.pack_into(self._map, _DROPPED_AT, self._dropped)
            return 0
        _LENGTH.pack_into(self._map, at, len(payload))
        self._map[at + 4 : end] = payload
        self._end = end
        _WORD.pack_into(self._map, 0, end)
        return at

    def mark_blocked(self, at: int) -> None:
        """Say that the rank is blocked in the entry at ``at``; 0 says that it runs."""
        _WORD.pack_into(self._map, _BLOCKED_AT, at)

    @property
    def dropped(self) -> int:
        """Entries that found the log full."""
        return int(_HEADER.unpack_from(self._map)[1])

    def committed(self) -> bytes:
        """All committed entries as one block, for sending; ``entries`` takes it apart."""
        return self._map[_HEADER.size : _HEADER.unpack_from(self._map)[0]]

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
        self._map.close()


def entries(block: bytes) -> Iterator[bytes]:
    """The entries of a block that ``committed`` returned, oldest first."""
    at = 0
    while at < len(block):
        (length,) = _LENGTH.unpack_from(block, at)
        yield block[at + 4 : at + 4 + length]
        at += 4 + length
