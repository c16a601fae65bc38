"""Recorder: stamps an event with the rank's step and writes it to the shared log."""

import time
from typing import Any, Protocol

import msgspec

from testbed.trace.events import (
    CODES,
    Block,
    Enter,
    Event,
    Exit,
    Operation,
    Sync,
    Synced,
    Take,
    decode,
)
from testbed.trace.log import SharedLog

_now_ns = time.monotonic_ns

# A rank is blocked from the first kind until the second.
_BLOCKING = {Enter: True, Sync: True, Block: True, Exit: False, Synced: False, Take: False}
# An Enter in short: its ordinal, its values, and the rest as it was encoded once. In logs only.
_KNOWN_ENTER = -1
_EXIT = CODES[Exit]
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


class OperationRecorder(Recorder, Protocol):
    """What the layer under ``torch.distributed`` writes to: Enter and Exit, as cheaply as can be.
    Nobody reads them by way of ``add``.
    """

    def known(self, operation: Operation) -> Any:
        """The operation as ``enter`` wants it, worked out once."""

    def enter(self, known: Any, ordinal: int, values: list[int]) -> None:
        """Record an Enter of a known operation."""

    def exit(self, values: list[int]) -> None:
        """Record its Exit."""


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

    def known(self, operation: Operation) -> msgspec.Raw:
        """The operation, encoded."""
        return msgspec.Raw(self._encode(operation))

    def enter(self, known: msgspec.Raw, ordinal: int, values: list[int]) -> None:
        """Record an Enter of a known operation."""
        t_us = (_now_ns() - self._born_ns) // 1000
        entry = (_KNOWN_ENTER, self._clock.step, t_us, ordinal, values, known)
        self._append(self._encode(entry), True)

    def exit(self, values: list[int]) -> None:
        """Record its Exit."""
        t_us = (_now_ns() - self._born_ns) // 1000
        self._append(self._encode((_EXIT, self._clock.step, t_us, values)), False)


class ListRecorder:
    """Keeps events in a list: for unit tests, and for anything that runs without a host."""

    def __init__(self, clock: HasStep) -> None:
        self._clock = clock
        self.events: list[Event] = []

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Record one event at the clock's current step."""
        self.events.append(decode([CODES[kind], self._clock.step, 0, *fields]))

    def known(self, operation: Operation) -> Operation:
        """The operation itself."""
        return operation

    def enter(self, known: Operation, ordinal: int, values: list[int]) -> None:
        """Record an Enter of a known operation."""
        self.events.append(known.entered(self._clock.step, 0, ordinal, values))

    def exit(self, values: list[int]) -> None:
        """Record its Exit."""
        self.add(Exit, values)


_decode_entry = msgspec.msgpack.Decoder(list).decode


def event_of(entry: bytes) -> Event:
    """One entry of a SharedLog -> the event."""
    code, *fields = _decode_entry(entry)
    if code == _KNOWN_ENTER:
        step, t_us, ordinal, values, operation = fields
        return Operation(*operation).entered(step, t_us, ordinal, values)
    return decode([code, *fields])
