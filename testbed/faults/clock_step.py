"""``clock-step``: the wall clock of the rank's machine is set, as by a time server."""

import time

from testbed.faults.base import Timed, Trigger
from testbed.workloads.base import Bench


class ClockStep(Timed, frozen=True, tag_field="kind", tag="clock-step"):
    """``time.time`` and ``time.time_ns`` of the rank are ``seconds`` off (below 0: set back)."""

    seconds: float

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Stand in for the two functions of the module, in this process."""
        seconds, nanoseconds = time.time, time.time_ns
        told = False

        def off_s() -> float:
            return self.seconds if self.holds_in(bench.clock.step) else 0.0

        def tell() -> None:
            nonlocal told
            if not told and self.holds_in(bench.clock.step):
                told = True
                fired(f"wall clock {self.seconds:+g} s")

        # mypy: the functions of a module may be replaced, and in a disposable rank nobody minds.
        time.time = lambda: seconds() + off_s()
        time.time_ns = lambda: nanoseconds() + int(off_s() * 1e9)
        bench.hooks.step.append(tell)
