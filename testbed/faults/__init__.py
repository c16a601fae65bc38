"""What can go wrong on a rank, one idea a file.

A fault is a small struct with a ``kind`` of its own, the ranks it is ``on``, and ``install``; add
its class to ``_FAULTS``. Each records ``Fired`` whenever it really took effect, so that one which
never did is seen.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from testbed.errors import BadInput
from testbed.faults.base import Fault, Trigger
from testbed.faults.empty_queue import EmptyQueue
from testbed.faults.never_ready import NeverReady
from testbed.faults.no_controller import NoController
from testbed.faults.query_error import QueryError
from testbed.faults.slow_events import SlowEvents
from testbed.scenario import select
from testbed.workloads.base import Bench

_FAULTS: tuple[type[Any], ...] = (NoController, EmptyQueue, SlowEvents, NeverReady, QueryError)
_KIND_OF: dict[type[Any], str] = {fault: fault.__struct_config__.tag for fault in _FAULTS}
_BY_KIND = {kind: fault for fault, kind in _KIND_OF.items()}

__all__ = ["Fault", "available", "install", "parse"]


def available() -> dict[str, str]:
    """Kinds of faults, with the first line of what each does."""
    return {kind: (fault.__doc__ or "").split("\n", 1)[0] for kind, fault in _BY_KIND.items()}


def parse(listed: Sequence[dict[str, Any]]) -> tuple[Fault, ...]:
    """A scenario's faults, in order. Raises BadInput naming the fault and what is wrong."""
    return tuple(_parse(place, given) for place, given in enumerate(listed))


def install(faults: Sequence[Fault], bench: Bench) -> None:
    """Install on this rank those that are on it."""
    for index, fault in enumerate(faults):
        if bench.rank in select(fault.on, bench.scenario.topology):
            fault.install(bench, Trigger(bench, index, _KIND_OF[type(fault)]))


def _parse(place: int, given: dict[str, Any]) -> Fault:
    kind = given.get("kind")
    if kind not in _BY_KIND:
        raise BadInput(f"faults[{place}].kind is {kind!r}: give one of {', '.join(_BY_KIND)}")
    try:
        fault: Fault = msgspec.convert(given, _BY_KIND[kind])
    except (msgspec.ValidationError, BadInput) as error:
        raise BadInput(f"faults[{place}] ({kind}): {error}") from error
    return fault
