"""``pause``: the rank is stopped for a while, as by a debugger or a starved machine."""

import os
import signal

from testbed.faults.base import Timed, Trigger
from testbed.faults.helper import fork_helper, gone
from testbed.workloads.base import Bench

MAX_MS = 60_000


class Pause(Timed, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """SIGSTOP for ``ms`` milliseconds at the beginning of each step in which it holds."""

    ms: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ms <= MAX_MS:
            raise ValueError(f"pause ms is {self.ms}: give more than 0, at most {MAX_MS}")

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Have a helper stop the rank and let it go on."""

        def hold(rank_fd: int) -> None:
            # The helper does both: a rank that stopped itself could do so after its wake-up call.
            signal.pidfd_send_signal(rank_fd, signal.SIGSTOP)
            if not gone(rank_fd, self.ms / 1000):
                signal.pidfd_send_signal(rank_fd, signal.SIGCONT)

        def pause() -> None:
            if self.holds_in(bench.clock.step):
                fired(f"stopped for {self.ms:g} ms")
                os.waitpid(fork_helper(hold), 0)

        bench.hooks.step.append(pause)
