"""``capacity``: a rank's pools are smaller than those of others."""

from typing import TYPE_CHECKING

from testbed.faults.base import Timed, Trigger
from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario
from testbed.workloads.base import Bench

if TYPE_CHECKING:
    from testbed.cache.pools import PagePool


class Capacity(Timed, frozen=True, tag_field="kind", tag="capacity"):
    """The rank has that many pages only. Takes effect whenever the pages withheld are missed: by an
    allocation, or by whoever asks how many there are or are free.
    """

    host_pages: int | None = None
    device_pages: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [pages for pages in (self.host_pages, self.device_pages) if pages is not None]
        if not given or min(given) < 0:
            raise ValueError("capacity needs host_pages or device_pages, from 0 on")

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput for a pool that would be no smaller than the scenario has it."""
        super().check(scenario)
        for key in ("host_pages", "device_pages"):
            own, usual = getattr(self, key), getattr(scenario.sizes, key)
            if own is not None and own >= usual:
                raise BadInput(f"capacity {key} is {own}, sizes.{key} {usual}: give less")

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Withhold pages while the fault holds."""
        cache = bench.cache
        if self.host_pages is not None:
            _withhold("host", cache.host, self.host_pages, self, bench, fired)
        if self.device_pages is not None:
            _withhold("device", cache.device, self.device_pages, self, bench, fired)


def _withhold(
    name: str, pool: "PagePool", left: int, fault: Timed, bench: Bench, fired: Trigger
) -> None:
    withheld, held = pool.size - left, False

    def hold() -> None:
        nonlocal held
        if fault.holds_in(bench.clock.step) != held:
            held = not held
            pool.withheld += withheld if held else -withheld

    def miss(pages: int) -> bool:
        if held and pool.room < pages <= pool.room + withheld:
            fired(f"{name} pool of {pool.size} pages lacks {pages - pool.room}")
        return False

    def look() -> None:
        if held:
            fired(f"{name} pool is seen to have {pool.size} pages, {pool.room} of them free")

    bench.hooks.step.append(hold)
    pool.refusals.append(miss)
    pool.looks.append(look)
