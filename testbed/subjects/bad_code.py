"""Code of others that fails as it is loaded: told in one line, with the place in it."""

import traceback
from collections.abc import Callable

from testbed.model.errors import BadInput, one_line


class BadCode(BadInput):
    """A subject whose code cannot be loaded, and where in it the reason is."""


def told(error: BaseException, is_theirs: Callable[[str], bool]) -> str:
    """``/their/file.py:3: ValueError: what it says``; "" where nothing of theirs had a part in it.
    is_theirs: whether a file, as tracebacks name it, is of their code.
    """
    place = _place(error, is_theirs)
    if not place:
        return ""
    if isinstance(error, SystemExit):
        return f"{place}: it ends the program, by sys.exit({error.code!r}), as it is imported"
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    return one_line(f"{place}: {type(error).__name__}{f': {what}' if what else ''}")


def _place(error: BaseException, is_theirs: Callable[[str], bool]) -> str:
    if isinstance(error, SyntaxError) and error.filename and is_theirs(error.filename):
        return f"{error.filename}:{error.lineno or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    within = [frame for frame in frames if is_theirs(frame.filename)]
    return f"{within[-1].filename}:{within[-1].lineno}" if within else ""
