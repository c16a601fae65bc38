"""How long a follower stalls when its transfers are later than the leader's.

One write a step. Its event is ready at once on the leader stage and ``skew`` later on the others;
a step takes ``step_us`` besides. The leader stage alone is counted in most protocols, so a follower
is told to complete what is not there yet, and blocks in that transfer's own ``synchronize``.
"""

import time
from collections.abc import Iterator
from typing import Any

from testbed.bench.plans import SkewPlan
from testbed.bench.ranks.pause import sleep_us
from testbed.bench.ranks.place import Place
from testbed.model.events import Event, Sync, Synced
from testbed.scripted_events import Readiness

_WARMUP = 5


class StallMeter:
    """A recorder that only adds up the time spent waiting for events that are not ready. spent_ns:
    so far."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self._since_ns = 0

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Note when a wait for an event begins and ends; Sync says whether there is one."""
        if kind is Sync:
            _, stall = fields
            self._since_ns = time.perf_counter_ns() if stall else 0
        elif kind is Synced and self._since_ns:
            self.spent_ns += time.perf_counter_ns() - self._since_ns


def figures(plan: SkewPlan, place: Place) -> Iterator[dict[str, Any]]:
    """A round at a time ``{"skew": [[subject, skew_us, stalls, steps], ...]}``: nanoseconds in
    ``synchronize``, and of the whole check, of each counted step."""
    for _ in range(plan.rounds):
        yield {
            "skew": [
                [subject, skew_us, *_run(plan, place, subject, skew_us)]
                for skew_us in plan.skews_us
                for subject in plan.subjects
            ]
        }


def _run(plan: SkewPlan, place: Place, subject: str, skew_us: float) -> tuple[list[int], list[int]]:
    meter, now = StallMeter(), time.perf_counter_ns
    steps = _WARMUP + plan.steps
    context = place.subject(subject, meter, pages=steps)
    controller, under_test = context.bench.controller, context.subject
    assert controller is not None, "no fault takes it away here"
    readiness = Readiness.ms(0 if place.groups.leads else skew_us / 1e3)
    stalls: list[int] = []
    checks: list[int] = []
    place.meet()
    for step in range(steps):
        context.begin_step()
        inserted = context.bench.cache.insert((step + 1,))
        assert inserted is not None, "there is a page for every step"
        controller.write(inserted.leaf, f"w{step}", readiness)
        under_test.track_write(inserted.leaf.id)
        sleep_us(plan.step_us)
        before_ns, began = meter.spent_ns, now()
        under_test.check_hicache_events()
        if step >= _WARMUP:
            checks.append(now() - began)
            stalls.append(meter.spent_ns - before_ns)
    under_test.drain_sends()
    return stalls, checks
