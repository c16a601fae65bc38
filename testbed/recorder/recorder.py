"""Recorder: stamps an event with the rank's step and thread, and writes it to the shared log."""

import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec

from testbed.model.events import (
    CODES,
    Block,
    Enter,
    Event,
    Exit,
    Left,
    Operation,
    Sync,
    Synced,
    Take,
    decode,
)
from testbed.recorder.log import SharedLog, entries

_now_ns = time.monotonic_ns

# A thread is blocked from the first kind until the second. These kinds say their thread.
_BLOCKING = {Enter: True, Sync: True, Block: True, Exit: False, Synced: False, Take: False}
# An Enter in short: its ordinal, its values, and the rest as it was encoded once. In logs only.
_KNOWN_ENTER = -1
_EXIT, _LEFT = CODES[Exit], CODES[Left]
# kind -> its code, and whether it blocks the thread, frees it or (None) neither.
_KINDS = {kind: (code, _BLOCKING.get(kind)) for kind, code in CODES.items()}


class HasStep(Protocol):
    """A rank's clock, seen from below."""

    step: int


class Recorder(Protocol):
    """Where a rank's events go. ``add(kind, *fields)`` takes the fields that follow step and
    t_us, but for the thread, which the recorder knows.
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

    def exit(self, values: list[int], work: bool = False, source: int = -1) -> None:
        """Record its Exit."""

    def left(self, type_name: str) -> None:
        """Record that an exception of that class left the operation."""

    def later(self, kind: type[Event], *fields: Any) -> None:
        """Record the event with the next one: called where nothing may be written, as while
        memory is given back.
        """


class _Here(threading.local):
    """What a recorder knows of the calling thread. Threads are numbered as they come; the one that
    makes the recorder is the main one, 0.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self.thread = next(numbers)
        self.blocked = False


class LogRecorder:
    """Writes to a SharedLog; one a rank, from any of its threads."""

    def __init__(self, log: SharedLog, clock: HasStep) -> None:
        self._log_append = log.append
        self._clock = clock
        self._here = _Here(count())
        assert self._here.thread == 0
        self._born_ns = time.monotonic_ns()
        self.born_us = self._born_ns // 1000
        self._encode = msgspec.msgpack.Encoder().encode
        self._late: deque[tuple[Any, ...]] = deque()

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Record one event at the clock's current step."""
        if self._late:
            self._catch_up()
        code, blocks = _KINDS[kind]
        t_us = (_now_ns() - self._born_ns) // 1000
        if blocks is not None and (thread := self._here.thread):
            fields = (*fields, thread)
        self._append(self._encode((code, self._clock.step, t_us, *fields)), blocks)

    def known(self, operation: Operation) -> msgspec.Raw:
        """The operation, encoded."""
        return msgspec.Raw(self._encode(operation))

    def enter(self, known: msgspec.Raw, ordinal: int, values: list[int]) -> None:
        """Record an Enter of a known operation."""
        if self._late:
            self._catch_up()
        here = self._here
        t_us = (_now_ns() - self._born_ns) // 1000
        entry: tuple[Any, ...] = (_KNOWN_ENTER, self._clock.step, t_us, ordinal, values, known)
        if here.thread:
            entry = (*entry, here.thread)
        change = 0 if here.blocked else 1
        here.blocked = True
        self._log_append(self._encode(entry), change)

    def exit(self, values: list[int], work: bool = False, source: int = -1) -> None:
        """Record its Exit."""
        here = self._here
        t_us = (_now_ns() - self._born_ns) // 1000
        entry: tuple[Any, ...] = (_EXIT, self._clock.step, t_us, values)
        if here.thread or work or source >= 0:
            entry = (*entry, here.thread, work, source)
        change = -1 if here.blocked else 0
        here.blocked = False
        self._log_append(self._encode(entry), change)

    def left(self, type_name: str) -> None:
        """Record that an exception of that class left the operation."""
        t_us = (_now_ns() - self._born_ns) // 1000
        entry = (_LEFT, self._clock.step, t_us, type_name, self._here.thread)
        self._append(self._encode(entry), False)

    def later(self, kind: type[Event], *fields: Any) -> None:
        """Record the event with the next one."""
        self._late.append((CODES[kind], *fields))

    def _append(self, entry: bytes, blocks: bool | None) -> None:
        here, change = self._here, 0
        if blocks is not None and blocks is not here.blocked:
            here.blocked = blocks
            change = 1 if blocks else -1
        self._log_append(entry, change)

    def _catch_up(self) -> None:
        t_us = (_now_ns() - self._born_ns) // 1000
        while self._late:
            code, *fields = self._late.popleft()
            self._log_append(self._encode((code, self._clock.step, t_us, *fields)), 0)


class ListRecorder:
    """Keeps events in a list: for unit tests, and for anything that runs without a host."""

    def __init__(self, clock: HasStep) -> None:
        self._clock = clock
        self._here = _Here(count())
        assert self._here.thread == 0
        self.events: list[Event] = []

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Record one event at the clock's current step."""
        thread = () if _BLOCKING.get(kind) is None else (self._here.thread,)
        self.events.append(decode([CODES[kind], self._clock.step, 0, *fields, *thread]))

    def known(self, operation: Operation) -> Operation:
        """The operation itself."""
        return operation

    def enter(self, known: Operation, ordinal: int, values: list[int]) -> None:
        """Record an Enter of a known operation."""
        entered = known.entered(self._clock.step, 0, ordinal, values, self._here.thread)
        self.events.append(entered)

    def exit(self, values: list[int], work: bool = False, source: int = -1) -> None:
        """Record its Exit."""
        self.events.append(Exit(self._clock.step, 0, values, self._here.thread, work, source))

    def left(self, type_name: str) -> None:
        """Record that an exception of that class left the operation."""
        self.events.append(Left(self._clock.step, 0, type_name, self._here.thread))

    def later(self, kind: type[Event], *fields: Any) -> None:
        """Record the event at once: nobody else writes to the list."""
        self.add(kind, *fields)


_decode_entry = msgspec.msgpack.Decoder(list).decode


def event_of(entry: bytes) -> Event:
    """One entry of a SharedLog -> the event."""
    code, *fields = _decode_entry(entry)
    if code == _KNOWN_ENTER:
        step, t_us, ordinal, values, operation, *thread = fields
        return Operation(*operation).entered(step, t_us, ordinal, values, *thread)
    return decode([code, *fields])


class Read(NamedTuple):
    """The events of a log. damage: why what follows the last of them cannot be read, "" if nothing
    does.
    """

    events: list[Event]
    damage: str


def read(block: bytes) -> Read:
    """The events of a block that ``committed`` returned. A rank that writes where it must not may
    have damaged it: then those before the damage.
    """
    events: list[Event] = []
    try:
        for entry in entries(block):
            events.append(event_of(entry))
    except (msgspec.MsgspecError, struct.error, TypeError, ValueError, IndexError) as error:
        return Read(events, f"{type(error).__name__} after {len(events)} events: {error}")
    return Read(events, "")
