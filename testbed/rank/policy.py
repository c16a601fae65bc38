"""How the kernel schedules a rank's threads.

gloo moves messages in a thread of its own, which polls a lock that the rank's thread holds while it
posts an operation. If the message thread wakes and preempts the other inside that lock, it spins
until its time slice is over: 3 to 4 ms on a machine whose cores are all in use, where a message
takes 0.1. Threads of SCHED_BATCH preempt nobody as they wake; hosts and controller stay as they
are, and so are served before any rank.
"""

import contextlib
import os


def wake_without_preempting() -> None:
    """Have this process, and all threads it will start, wait for a free core when they wake. A
    policy that somebody chose stays, and so does the kernel's own where it may not be changed."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
