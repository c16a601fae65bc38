"""Recorder: stamps an event with the rank's step and writes it to the shared log."""

import time
from typing import Any, Protocol

import msgspec

from testbed.trace.events import CODES, Block, Enter, Event, Exit, Sync, Synced, Take, decode
from testbed.trace.log import SharedLog

_now_ns = time.monotonic_ns

# A rank is blocked from the first kind until the second.
_BLOCKING = {Enter: True, Sync: True, Block: True, Exit: False, Synced: False, Take: False}
# kind -> its code, and whether it blocks the rank, frees it or (None) neither.
_KINDS = {kind: (code, _BLOCKING.get(kind)) for kind, code in CODES.items()}


class HasStep(Protocol):
    """A rank's clock, seen from below."""

    step: int


class Recorder(Protocol):
    """Where a rank's events go. ``add(kind, *fields)`` takes the fields that follow step and
    t_us.
    """

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Record one event at the clock's current step."""


class LogRecorder:
    """Writes to a SharedLog; one a rank, single-threaded."""

    def __init__(self, log: SharedLog, clock: HasStep) -> None:
        self._append = log.append
        self._clock = clock
        self._born_ns = time.monotonic_ns()
        self.born_us = self._born_ns // 1000
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Record one event at the clock's current step."""
        code, blocks = _KINDS[kind]
        t_us = (_now_ns() - self._born_ns) // 1000
        self._append(self._encode((code, self._clock.step, t_us, *fields)), blocks)


class ListRecorder:
    """Keeps events in a list: for unit tests, and for anything that runs without a host."""

    def __init__(self, clock: HasStep) -> None:
        self._clock = clock
        self.events: list[Event] = []

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Record one event at the clock's current step."""
        self.events.append(decode([CODES[kind], self._clock.step, 0, *fields]))


_decode_entry = msgspec.msgpack.Decoder(list).decode


def event_of(entry: bytes) -> Event:
    """One entry of a SharedLog -> the event."""
    return decode(_decode_entry(entry))
