"""A small process beside a rank, for what a rank cannot do to itself."""

import contextlib
import gc
import os
import select
from collections.abc import Callable


def fork_helper(work: Callable[[int], object]) -> int:
    """Fork a process that does ``work`` and ends; its pid, for the caller to wait for.

    ``work`` gets a pidfd of the rank: it must end when the rank does, which ``gone`` tells it.
    """
    rank_fd = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        try:
            gc.disable()  # what the rank made is not ours to finalise
            _close_all_but(rank_fd)
            work(rank_fd)
        finally:
            os._exit(0)
    os.close(rank_fd)
    return pid


def gone(rank_fd: int, within_s: float) -> bool:
    """Whether the rank ends within that time; 0: whether it has ended."""
    return bool(select.select([rank_fd], [], [], within_s)[0])


def _close_all_but(kept: int) -> None:
    # Peers must see the rank's connections close when the rank ends, not when its helper does.
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != kept:
            with contextlib.suppress(OSError):  # the listing's own is closed already
                os.close(fd)
