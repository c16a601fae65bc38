"""Code of others that fails as it is loaded: told in one line, with the place in it."""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn
from unittest import mock

from testbed.model.errors import BadInput, one_line


class BadCode(BadInput):
    """A subject whose code cannot be loaded, and where in it the reason is."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came, which is not the code's doing."""


class _Left(SystemExit):
    """It called ``os._exit``."""


@contextmanager
def loading() -> Iterator[None]:
    """Inside, code of others is loaded: its ``os._exit`` raises, else nobody could tell of it, and
    Ctrl-C raises ``Interrupted``, since the code may raise KeyboardInterrupt itself.
    """
    process, leave, over = os.getpid(), os._exit, False

    def left(status: int) -> NoReturn:
        if over or os.getpid() != process:  # it may have kept the name, or forked
            leave(status)
        raise _Left(status)

    usual = signal.getsignal(signal.SIGINT)
    mine = threading.current_thread() is threading.main_thread()
    mine = mine and usual is signal.default_int_handler
    try:
        if mine:
            signal.signal(signal.SIGINT, _interrupted)
        with mock.patch.object(os, "_exit", left):
            yield
    finally:
        over = True
        if mine:
            signal.signal(signal.SIGINT, usual)


def _interrupted(signum: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted


def told(error: BaseException, is_theirs: Callable[[str], bool]) -> str:
    """``/their/file.py:3: ValueError: what it says``; "" where nothing of theirs had a part in it.
    is_theirs: whether a file, as tracebacks name it, is of their code.
    """
    place = _place(error, is_theirs)
    if not place:
        return ""
    if isinstance(error, SystemExit):
        way = "os._exit" if isinstance(error, _Left) else "sys.exit"
        return f"{place}: it ends the program, by {way}({error.code!r}), as it is imported"
    what = error.msg if isinstance(error, SyntaxError) else _said(error)
    return one_line(f"{place}: {type(error).__name__}{f': {what}' if what else ''}")


def _said(error: BaseException) -> str:
    """What it says, also where its own ``__str__`` raises."""
    return str(traceback.TracebackException(type(error), error, None))


def _place(error: BaseException, is_theirs: Callable[[str], bool]) -> str:
    if isinstance(error, SyntaxError) and error.filename and is_theirs(error.filename):
        return f"{error.filename}:{error.lineno or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    within = [frame for frame in frames if frame.filename != __file__ and is_theirs(frame.filename)]
    return f"{within[-1].filename}:{within[-1].lineno}" if within else ""
