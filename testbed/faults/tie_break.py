"""``tie-break``: an LRU whose clock is too coarse, and that breaks the ties its own way."""

from typing import TYPE_CHECKING

from testbed.faults.base import Timed, Trigger
from testbed.workloads.base import Bench

if TYPE_CHECKING:
    from testbed.cache import Node

_ACCESSES = 1 << 40  # more than there are in any run


class TieBreak(Timed, frozen=True, tag_field="kind", tag="tie-break"):
    """Accesses of one step are equally old; of equals the one touched last is evicted first.

    Takes effect whenever that makes another victim than the exact order would.
    """

    def install(self, bench: Bench, fired: Trigger) -> None:
        """Stamp accesses in another order."""
        cache, accesses = bench.cache, bench.cache.stamp

        def stamp() -> int:
            step, access = bench.clock.step, accesses()
            within = _ACCESSES - access if self.holds_in(step) else access
            return (step + 1) * _ACCESSES + within

        def look(where: str, victim: "Node") -> None:
            step, within = divmod(victim.last_access, _ACCESSES)
            if not self.holds_in(step - 1):
                return
            equals = [
                node
                for node in cache.evictable(where)
                if node is not victim and node.last_access // _ACCESSES == step
            ]
            if any(node.last_access % _ACCESSES > within for node in equals):
                fired(f"{where}: {victim.key} evicted before {len(equals)} touched in its step")

        cache.stamp = stamp
        cache.on_evict.append(look)
