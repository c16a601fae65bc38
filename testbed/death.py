"""Nothing outlives what started it: Linux's parent-death signal, subreapers, and a mark in the
environment by which a process is found that has left its parents, its group and its session.
"""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

MARK = "TESTBED_LAUNCH"
"""Environment variable of all that one launcher starts: the launch's own folder."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Each round ends all that there are; more are needed where they forked meanwhile.
_ROUNDS = 20


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send ``signum`` to this process when ``parent`` ends; leave at once if it
    already has.

    The signal follows the *thread* that created this process, so parents must start children from
    their main thread.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Have processes below this one whose parent ends become children of this one, not of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """The children of this process, those that have ended and were not waited for included."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended meanwhile
            found += map(int, task.read_text().split())
    return found


def end_marked(mark: str) -> None:
    """Kill every process that has this mark in its environment, but for this one."""
    for _ in range(_ROUNDS):
        if not [pid for pid in marked(MARK, mark) if _kill_marked(pid, mark)]:
            return


def marked(name: str, value: str) -> list[int]:
    """Processes that were started with this variable in their environment, but for this one; of
    others' and of those that have ended nothing is known.
    """
    numbers = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in numbers if pid != os.getpid() and _has(pid, name, value)]


def _has(pid: int, name: str, value: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{name}={value}".encode() in words


def _kill_marked(pid: int, mark: str) -> bool:
    """Whether it was there to be killed. By a pidfd, lest its number is another's by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _has(pid, MARK, mark):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
