"""Colour, where it helps: on a terminal, and nowhere if ``NO_COLOR`` is set."""

import os
from typing import TextIO

from testbed.model.verdict import Outcome

_GREEN, _YELLOW, _RED, _MAGENTA = 32, 33, 31, 35
_OF_VERDICT = {str(outcome): _RED for outcome in Outcome} | {
    str(Outcome.OK): _GREEN,
    str(Outcome.DEGRADED): _YELLOW,
    str(Outcome.ERROR): _MAGENTA,
}


def takes_colour(stream: TextIO) -> bool:
    """Whether to write colour to the stream (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, verdict: str) -> str:
    """The text in the colour of a verdict."""
    return f"\x1b[{_OF_VERDICT[verdict]}m{text}\x1b[0m"
