"""Which injected fault may be the root of what went wrong."""

from typing import NamedTuple

from testbed.analysis.sides import named
from testbed.analysis.view import View
from testbed.model.events import Fired
from testbed.model.verdict import Divergence


class Injected(NamedTuple):
    """One fault of the scenario that took effect in time. ranks: where, odd ranks only if there
    are any. first: the effect that came first there. odd: whether it befell an odd rank.
    """

    ranks: tuple[int, ...]
    first: Fired
    odd: bool

    def told(self) -> str:
        """``fault 0 (empty-queue) on rank 2, step 1: write w0 refused``."""
        fault = f"fault {self.first.fault} ({self.first.kind}) on {named(self.ranks)}"
        detail = f": {self.first.detail}" if self.first.detail else ""
        when = f"step {self.first.step}" if self.first.step >= 0 else "from the start"
        return f"{fault}, {when}{detail}"


def injected(view: View, divergence: Divergence | None) -> list[Injected]:
    """The faults that took effect no later than the first divergence, those on its minority first.

    A fault before the divergence need not be its cause; one after it cannot be.
    """
    if divergence is None:
        return []
    fired: dict[int, list[tuple[int, Fired]]] = {}
    for rank in view.ranks.values():
        for event in rank.fired:
            if event.step <= divergence.step:
                fired.setdefault(event.fault, []).append((rank.rank, event))
    found = [_injected(effects, divergence.minority) for _, effects in sorted(fired.items())]
    return sorted(found, key=lambda one: not one.odd)


def _injected(effects: list[tuple[int, Fired]], minority: tuple[int, ...]) -> Injected:
    odd = [effect for effect in effects if effect[0] in minority]
    told = odd or effects
    first = min((event for _, event in told), key=lambda event: event.step)
    return Injected(tuple(sorted({rank for rank, _ in told})), first, bool(odd))
