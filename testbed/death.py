"""Nothing outlives its parent: Linux's parent-death signal."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send ``signum`` to this process when ``parent`` ends; leave at once if it
    already has.

    The signal follows the *thread* that created this process, so parents must start children from
    their main thread.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
