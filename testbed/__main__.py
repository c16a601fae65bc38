"""``python -m testbed``: the command line, or one line on what is not installed."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from testbed.model.exit_status import ENVIRONMENT, INTERRUPTED

_OURS = ("testbed", "reports", "launchers")
_STANDARD_ERROR = 2


def main() -> int:
    """Run the command line on ``sys.argv`` and return its exit status."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # else Ctrl-C is none of this process's business
        signal.signal(signal.SIGINT, _leave)
    try:
        run = _command_line()
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        print(f"testbed: {error} (in {sys.executable}): run make setup", file=sys.stderr)
        return ENVIRONMENT
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, usual)
    try:
        return run(None)
    except KeyboardInterrupt:
        _say_interrupted()
        return INTERRUPTED


def _command_line() -> Callable[[Sequence[str] | None], int]:
    # Not at the top: without torch even this module's import would end in a traceback.
    from testbed.cli.command import load
    from testbed.cli.command import main as run

    load(sys.argv[1:])
    return run


def _leave(signum: int, frame: FrameType | None) -> None:
    """Ctrl-C while modules are imported, which takes over a second: nothing is there to clean up,
    and an exception could be caught by one of them.
    """
    _say_interrupted()
    os._exit(INTERRUPTED)


def _say_interrupted() -> None:
    with contextlib.suppress(OSError):  # the status still tells
        os.write(_STANDARD_ERROR, b"testbed: interrupted\n")


if __name__ == "__main__":
    sys.exit(main())
