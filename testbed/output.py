"""Output that cannot be written is told in one line, like any other fault.

Inside ``guarded`` a ``print`` that finds a full device raises EnvironmentFault, one whose reader
has left BrokenPipeError; either way nothing more is written, not even when the interpreter ends.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from testbed.errors import EnvironmentFault


class _Guarded:
    """A stream that gives up for good at its first failure."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        """As of any stream."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise self._given_up(error) from error

    def flush(self) -> None:
        """As of any stream."""
        try:
            self._stream.flush()
        except OSError as error:
            raise self._given_up(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _given_up(self, error: OSError) -> Exception:
        # What is still buffered would be tried again, and complained of, at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        if isinstance(error, BrokenPipeError):
            return error
        return EnvironmentFault(f"{self._name} cannot be written: {error.strerror}")


@contextmanager
def guarded() -> Iterator[None]:
    """Guards ``sys.stdout`` and ``sys.stderr``, and flushes the former at the end, also where an
    exception ends it.
    """
    with open(os.devnull, "w") as nowhere:
        yield from _guarded(nowhere)


def _guarded(nowhere: TextIO) -> Iterator[None]:
    # A stream that was closed before the interpreter began is None.
    out = cast(TextIO, _Guarded(sys.stdout or nowhere, "standard output"))
    err = cast(TextIO, _Guarded(sys.stderr or nowhere, "standard error"))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()
