"""``extra-pool``: a sidecar pool that only some ranks own, with a release queue of its own."""

from testbed.faults.base import Timed, Trigger
from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario, Sidecar
from testbed.workloads.base import Bench


class ExtraPool(Timed, frozen=True, tag_field="kind", tag="extra-pool"):
    """One more sidecar pool on these ranks. In each step one page of it waits to be released."""

    name: str = "extra"

    def __post_init__(self) -> None:
        super().__post_init__()
        Sidecar(self.name)  # refuses what is no name

    def check(self, scenario: Scenario) -> None:
        """Raises BadInput without storage, and for a name that is taken."""
        super().check(scenario)
        if not scenario.storage:
            raise BadInput('extra-pool needs the storage queues: set "storage": true')
        if self.name in [sidecar.name for sidecar in scenario.sidecars]:
            raise BadInput(f"extra-pool name {self.name!r} is a sidecar's: give another one")

    def adapt(self, scenario: Scenario) -> Scenario:
        """With the pool among its sidecars."""
        return scenario.but(sidecars=[*scenario.sidecars, Sidecar(self.name, self.on)])

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Release a page of the pool in each step."""
        controller, page = bench.controller, bench.scenario.sizes.page_tokens
        if controller is None:
            return
        pool = controller.mem_pool_host.pool(self.name)
        queue = controller.extra_host_mem_release_queues[self.name]

        def release() -> None:
            step = bench.clock.step
            page_of_it = pool.alloc(page) if self.holds_in(step) else None
            if page_of_it is not None:
                queue.put(page_of_it, key=f"{self.name}{step}")
                fired(f"a page of {self.name} to release")

        bench.hooks.step.append(release)
