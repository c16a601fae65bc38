"""``cpu-steal``: somebody else uses the cores."""

import os
import signal
import time

from testbed.faults.base import Timed, Trigger
from testbed.faults.helper import fork_helper, gone
from testbed.workloads.base import Bench

MAX_SPINNERS, MAX_MS = 64, 60_000
_TURNS = 20_000


class CpuSteal(Timed, frozen=True, tag_field="kind", tag="cpu-steal"):
    """``spinners`` busy processes while it holds, or for ``ms`` milliseconds from its first step
    on, a minute at most; they end with the rank.
    """

    spinners: int = 1
    ms: float = MAX_MS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.spinners <= MAX_SPINNERS:
            raise ValueError(f"spinners is {self.spinners}: give a number from 1 to {MAX_SPINNERS}")
        if not 0 < self.ms <= MAX_MS:
            raise ValueError(f"cpu-steal ms is {self.ms}: give more than 0, at most {MAX_MS}")

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Start the spinners, and end them when the fault no longer holds."""
        running: list[int] = []

        def spin(rank_fd: int) -> None:
            end_s = time.monotonic() + self.ms / 1000
            while time.monotonic() < end_s and not gone(rank_fd, 0):
                for _ in range(_TURNS):
                    pass

        def step() -> None:
            now = bench.clock.step
            if now == self.from_step:
                running.extend(fork_helper(spin) for _ in range(self.spinners))
                fired(f"{self.spinners} spinning")
            elif not self.holds_in(now):
                stop()

        def stop() -> None:
            while running:
                pid = running.pop()
                os.kill(pid, signal.SIGKILL)  # one that has ended stays ours until waited for
                os.waitpid(pid, 0)

        bench.hooks.step.append(step)
        bench.hooks.close.append(stop)
