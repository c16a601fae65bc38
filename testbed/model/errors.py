"""Errors that a person can act on: each message is one line saying what, where and what to do."""

import reprlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LONGEST_LINE, _LONGEST_NAME = 1000, 200
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60
_BRIEF.maxlist = _BRIEF.maxdict = 6


def printable(text: str) -> str:
    """The text as it may be shown to people, wherever it comes from: what is no letter, sign, blank
    or line break is written out as an escape. Else it could move a terminal's cursor, change its
    title or hide what is there.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _escape(char) for char in text)


def all_printable(value: Any) -> Any:
    """Plain JSON values with every string in them ``printable``."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [all_printable(each) for each in value]
    if isinstance(value, dict):
        return {all_printable(key): all_printable(each) for key, each in value.items()}
    return value


def _escape(char: str) -> str:
    return repr(char)[1:-1]


def one_line(text: str) -> str:
    """The text on one line, ``printable``, and without its middle if it is very long."""
    return shortened(printable(" ".join(text.split())), _LONGEST_LINE)


class BadInput(ValueError):
    """What the user gave cannot be run: a scenario, a name, a topology, a file (exit status 2).

    Its message quotes what was given, whatever that is, and is one line all the same.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class EnvironmentFault(Exception):
    """The testbed or its machine failed, not the subject (exit status 3). Its message is one line,
    whatever it quotes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class Terminated(KeyboardInterrupt):
    """SIGTERM came: as for Ctrl-C, what has run is told and the rest is not (exit status 143)."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises ``Terminated``, once; others that follow do not disturb the end. One
    that somebody else handles, or ignores, stays theirs.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_IGN)
    raise Terminated


@contextmanager
def naming(where: str) -> Iterator[None]:
    """What is wrong inside is told with ``where``, a file or a place in one, before it."""
    try:
        yield
    except BadInput as error:
        raise type(error)(f"{where}: {error}") from error


def brief(value: Any) -> str:
    """A value as Python writes it, without its middle if it is long: errors are one line."""
    return _BRIEF.repr(value)


def shortened(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name as it was given, without its middle if it is too long for a line."""
    if len(name) > longest:
        return f"{name[: longest // 2]}…{name[-longest // 2 :]}"
    return name if name.strip() else repr(name)
