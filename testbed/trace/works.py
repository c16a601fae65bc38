"""Which asynchronous operations are not over yet, by the Work that stands for each.

The Work itself stays as torch made it: its class is given recording methods (``shim``), and what is
known of the operation is kept here, beside it.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testbed.trace.guard import Guard


@dataclass(frozen=True, eq=False, slots=True)
class Pending:
    """An operation whose Work the program holds. site: what its calls have in common. tensor: the
    one whose values are recorded. ranks: global ranks of its group.
    """

    site: Any
    ordinal: int
    tensor: Any
    guard: Guard
    ranks: tuple[int, ...]


class Works:
    """The Works of one rank that nobody has waited for. dropped: called from wherever the last
    reference to such a Work was given up.
    """

    def __init__(self, dropped: Callable[[Pending], None]) -> None:
        self._dropped = dropped
        self._held: dict[int, tuple[weakref.ref[Any], Pending]] = {}

    def track(self, work: Any, pending: Pending) -> None:
        """The program was handed the Work of an operation."""
        key = id(work)

        def gone(_: object) -> None:
            found = self._held.pop(key, None)
            if found is not None:
                self._dropped(found[1])

        self._held[key] = (weakref.ref(work, gone), pending)

    def find(self, work: Any) -> Pending | None:
        """Its operation; None once that is over, or if it is none of the recorded ones."""
        found = self._held.get(id(work))
        return None if found is None else found[1]

    def settle(self, work: Any) -> None:
        """Its operation is over."""
        self._held.pop(id(work), None)
