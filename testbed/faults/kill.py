"""``kill``: the rank dies by a signal."""

import os
import signal
from typing import Literal

from testbed.faults.base import Trigger
from testbed.faults.moment import Moment
from testbed.workloads.base import Bench


class Kill(Moment, frozen=True, tag_field="kind", tag="kill"):
    """The rank kills itself. signal: one whose default is death."""

    signal: Literal[
        "SIGKILL", "SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTERM", "SIGHUP"
    ] = "SIGKILL"

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Wait for the moment."""
        number = signal.Signals[self.signal]

        def die(moment: str) -> None:
            fired(f"{self.signal} {moment}")
            os.kill(os.getpid(), number)
            signal.pause()  # it may take another thread a moment to take the signal

        self.strike(bench, die)
