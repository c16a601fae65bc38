"""Errors that a person can act on: each message is one line saying what, where and what to do."""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LONGEST = 200
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60
_BRIEF.maxlist = _BRIEF.maxdict = 6


class BadInput(ValueError):
    """What the user gave cannot be run: a scenario, a name, a topology, a file (exit status 2)."""


class EnvironmentFault(Exception):
    """The testbed or its machine failed, not the subject (exit status 3)."""


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


def shortened(name: str) -> str:
    """A name as it was given, without its middle if it is too long for a line, and with what cannot
    be printed written out.
    """
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"
    return printable(name) if name.strip() else repr(name)


def printable(text: str) -> str:
    """The text with characters that would move a terminal's cursor written out as escapes."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
