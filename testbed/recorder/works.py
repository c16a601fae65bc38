"""Which asynchronous operations are not over yet, by the Work that stands for each.

The Work itself stays as torch made it: its class is given recording methods (``shim``), and what is
known of the operation is kept here, beside it.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from testbed.recorder.guard import Guard


class Pending(NamedTuple):
    """An operation that is not over. site: what its calls have in common. tensor: the one whose
    values are recorded. guard: watches its buffers.
    """

    site: Any
    ordinal: int
    tensor: Any
    guard: Guard


class _Held(weakref.ref[Any]):
    """The Work, not kept alive by this, and its operation."""

    __slots__ = ("key", "pending")

    key: int
    pending: Pending


class Works:
    """The Works of one rank that nobody has waited for. dropped: called from wherever the last
    reference to such a Work was given up.
    """

    def __init__(self, dropped: Callable[[Pending], None]) -> None:
        self._dropped = dropped
        self._held: dict[int, _Held] = {}

    def track(self, work: Any, pending: Pending) -> None:
        """The program was handed the Work of an operation."""
        held = _Held(work, self._gone)
        held.key = key = id(work)
        held.pending = pending
        self._held[key] = held

    def find(self, work: Any) -> Pending | None:
        """Its operation; None once that is over, or if it is none of the recorded ones."""
        held = self._held.get(id(work))
        return None if held is None else held.pending

    def settle(self, work: Any) -> None:
        """Its operation is over."""
        self._held.pop(id(work), None)

    def _gone(self, held: "weakref.ref[Any]") -> None:
        assert isinstance(held, _Held)
        # Another Work may have the id by now.
        if self._held.get(held.key) is held:
            del self._held[held.key]
            self._dropped(held.pending)
