"""Programs that end in one line and an exit status, also where their output cannot be written.

Inside ``guarded`` a ``print`` that finds a full device raises EnvironmentFault, one whose reader
has left BrokenPipeError; either way nothing more is written, not even when the interpreter ends.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO, cast

from testbed.model.errors import BadInput, EnvironmentFault, Terminated, one_line, terminable
from testbed.model.exit_status import (
    BAD_INPUT,
    ENVIRONMENT,
    INTERRUPTED,
    NOT_AS_EXPECTED,
    TERMINATED,
)


def ended(name: str, program: Callable[[], int]) -> int:
    """Run a program and return its exit status: what it returns, 2 for BadInput, 3 for
    EnvironmentFault, 130 for Ctrl-C, 143 for SIGTERM, each told in one line that begins with
    ``name``; 1 if the reader of its output has left.
    """
    try:
        with terminable(), guarded():
            return program()
    except BadInput as error:
        return _complain(name, str(error), BAD_INPUT)
    except EnvironmentFault as error:
        return _complain(name, str(error), ENVIRONMENT)
    except Terminated:
        return _complain(name, "ended by SIGTERM", TERMINATED)
    except KeyboardInterrupt:
        return _complain(name, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        return NOT_AS_EXPECTED


def _complain(name: str, message: str, status: int) -> int:
    with suppress(OSError):  # the status still tells
        print(f"{name}: {one_line(message)}", file=sys.stderr)
    return status


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
