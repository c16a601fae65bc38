"""Looking at processes from outside: who is below whom, and whether they have ended."""

import contextlib
import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path

GONE_WITHIN_S = 30.0  # only ends a failing test: how fast it goes is up to the machine
# For what no event tells a bystander: long enough for any machine, and no measure of anything.
_PATIENCE_S = 300.0


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, nearest first."""
    below: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            below += [child, *descendants(child)]
    return below


def await_gone(pids: list[int], within_s: float = GONE_WITHIN_S) -> list[int]:
    """Wait until these processes have ended; those still there after that time."""
    limit = time.monotonic() + within_s
    left = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            with selectors.DefaultSelector() as waiting:
                waiting.register(pidfd, selectors.EVENT_READ)
                if not waiting.select(max(limit - time.monotonic(), 0)):
                    left.append(pid)
            os.close(pidfd)
    return left


def await_true(reached: Callable[[], object]) -> None:
    """Look until ``reached()``; fails after a long time."""
    limit = time.monotonic() + _PATIENCE_S
    while not reached():
        assert time.monotonic() < limit, "it did not come to that"
        time.sleep(0.01)


def module(pid: int) -> str:
    """The module that a Python process was started with; torchrun names its workers' after its
    own.
    """
    words = cmdline(pid).decode().split("\0")
    return words[words.index("-m") + 1] if "-m" in words else ""


def cmdline(pid: int) -> bytes:
    """The words of its command line, each ended by a zero byte; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
