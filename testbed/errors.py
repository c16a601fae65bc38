"""Errors that a person can act on: each message is one line saying what, where and what to do."""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LONGEST_LINE, _LONGEST_NAME = 1000, 200
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60
_BRIEF.maxlist = _BRIEF.maxdict = 6


def one_line(text: str) -> str:
    """The text on one line, without its middle if it is very long, and with characters that would
    move a terminal's cursor written out as escapes.
    """
    line = " ".join(text.split())
    printable = (char if char.isprintable() else repr(char)[1:-1] for char in line)
    return shortened("".join(printable), _LONGEST_LINE)


class BadInput(ValueError):
    """What the user gave cannot be run: a scenario, a name, a topology, a file (exit status 2).

    Its message quotes what was given, whatever that is, and is one line all the same.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


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


def shortened(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name as it was given, without its middle if it is too long for a line."""
    if len(name) > longest:
        return f"{name[: longest // 2]}…{name[-longest // 2 :]}"
    return name if name.strip() else repr(name)
