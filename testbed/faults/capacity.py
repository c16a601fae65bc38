"""``capacity``: a rank's pools are smaller than those of others."""

from testbed.errors import BadInput
from testbed.faults.base import Timed, Trigger
from testbed.scenario import Scenario
from testbed.workloads.base import Bench


class Capacity(Timed, frozen=True, tag_field="kind", tag="capacity"):
    """The rank has that many pages only. Takes effect whenever the pages withheld are missed."""

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
        pools = {"host": cache.host, "device": cache.device}
        sizes = {"host": self.host_pages, "device": self.device_pages}
        withheld = {
            name: pools[name].total - size for name, size in sizes.items() if size is not None
        }
        held = False

        def hold() -> None:
            nonlocal held
            if self.holds_in(bench.clock.step) == held:
                return
            held = not held
            for name, pages in withheld.items():
                pools[name].withheld += pages if held else -pages

        def miss(name: str, pages: int) -> bool:
            if held and name in withheld:
                free = pools[name].free_pages
                if free < pages <= free + withheld[name]:
                    fired(f"{name} pool of {pools[name].total} pages lacks {pages - free}")
            return False

        bench.hooks.step.append(hold)
        cache.refusals.append(miss)
