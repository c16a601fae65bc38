"""``alloc-failure``: a pool refuses allocations, as one that is full or too fragmented does."""

from itertools import count
from typing import Literal

from testbed.faults.base import Timed, Trigger, check_nth
from testbed.workloads.base import Bench


class AllocFailure(Timed, frozen=True, tag_field="kind", tag="alloc-failure"):
    """The ``nth`` allocation (from 0) of the host or device pool fails; null: every one.

    A failed host allocation costs a write or a prefetch, a failed device allocation a load or what
    was to be computed. Nothing is evicted to make room, unless the subject itself evicts and asks
    again, which is an allocation of its own.
    """

    pool: Literal["host", "device"] = "host"
    nth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nth(self.nth)

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Stand before the pool."""
        places = count()

        def refuse(pages: int) -> bool:
            place = next(places)
            if self.nth not in (None, place) or not self.holds_in(bench.clock.step):
                return False
            fired(f"{self.pool} allocation {place} of {pages} pages refused")
            return True

        pool = bench.cache.host if self.pool == "host" else bench.cache.device
        pool.refusals.append(refuse)
