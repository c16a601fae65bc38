"""What can go wrong on a rank, one idea a file.

A fault is a small struct with a ``kind`` of its own, the ranks it is ``on``, and ``install``; add
its class to ``_FAULTS``. Each records ``Fired`` whenever it really took effect, so that one which
never did is seen.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from testbed.faults.alloc_failure import AllocFailure
from testbed.faults.base import Fault, Trigger
from testbed.faults.capacity import Capacity
from testbed.faults.clock_step import ClockStep
from testbed.faults.cpu_steal import CpuSteal
from testbed.faults.empty_queue import EmptyQueue
from testbed.faults.extra_pool import ExtraPool
from testbed.faults.extra_sync import ExtraSync
from testbed.faults.kill import Kill
from testbed.faults.late import Late
from testbed.faults.microbatch_lag import MicrobatchLag
from testbed.faults.never_ready import NeverReady
from testbed.faults.no_controller import NoController
from testbed.faults.out_of_order import OutOfOrder
from testbed.faults.pause import Pause
from testbed.faults.query_error import QueryError
from testbed.faults.raised import Raise
from testbed.faults.skip_sync import SkipSync
from testbed.faults.slow_events import SlowEvents
from testbed.faults.tie_break import TieBreak
from testbed.model.errors import BadInput, brief, naming
from testbed.model.scenario import Scenario, explained, select
from testbed.workloads.base import Bench, Spec
from testbed.workloads.scripted import ScriptedPlan

_FAULTS: tuple[type[Any], ...] = (
    NoController,
    EmptyQueue,
    SlowEvents,
    NeverReady,
    QueryError,
    OutOfOrder,
    AllocFailure,
    Capacity,
    ExtraPool,
    SkipSync,
    ExtraSync,
    Late,
    MicrobatchLag,
    TieBreak,
    ClockStep,
    Pause,
    Kill,
    Raise,
    CpuSteal,
)
_KIND_OF: dict[type[Any], str] = {fault: fault.__struct_config__.tag for fault in _FAULTS}
_BY_KIND = {kind: fault for fault, kind in _KIND_OF.items()}

__all__ = ["Fault", "adapted", "available", "check", "install", "parse"]


def available() -> dict[str, str]:
    """Kinds of faults, with the first paragraph of what each does, on one line."""
    return {
        kind: " ".join((fault.__doc__ or "").split("\n\n")[0].split())
        for kind, fault in _BY_KIND.items()
    }


def parse(listed: Sequence[dict[str, Any]]) -> tuple[Fault, ...]:
    """A scenario's faults, in order. Raises BadInput naming the fault and what is wrong."""
    return tuple(_parse(place, given) for place, given in enumerate(listed))


def check(scenario: Scenario, plan: Spec) -> None:
    """Whether its faults can be run there, and whether any is sure never to take effect. plan: its
    workload. Raises BadInput naming the fault and what is wrong.
    """
    scripts = plan.scripts if isinstance(plan, ScriptedPlan) else {}
    for place, fault in enumerate(parse(scenario.faults)):
        with naming(f"faults[{place}]"):
            fault.check(scenario)
            ranks = select(fault.on, scenario.topology)
            if not ranks:
                raise BadInput(f"'on' selects no rank at {scenario.topology}")
            if scripts and not any(fault.reaches(scripts[rank]) for rank in ranks):
                raise BadInput(
                    f"{_KIND_OF[type(fault)]} can never take effect, the workload has no such "
                    "transfer: look at its ranks, queue and steps"
                )


def adapted(faults: Sequence[Fault], scenario: Scenario) -> Scenario:
    """The scenario as its ranks are built for it: with what faults add to it on any of them."""
    for fault in faults:
        scenario = fault.adapt(scenario)
    return scenario


def structs() -> dict[str, Any]:
    """Fault kind -> the Struct that reads its keys."""
    return dict(_BY_KIND)


def install(faults: Sequence[Fault], bench: Bench) -> None:
    """Install on this rank those that are on it."""
    for index, fault in enumerate(faults):
        if bench.rank in select(fault.on, bench.scenario.topology):
            fault.install(bench, Trigger(bench, index, _KIND_OF[type(fault)]))


def _parse(place: int, given: dict[str, Any]) -> Fault:
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in _BY_KIND:
        raise BadInput(f"faults[{place}].kind is {brief(kind)}: give one of {', '.join(_BY_KIND)}")
    try:
        fault: Fault = msgspec.convert(given, _BY_KIND[kind])
    except msgspec.ValidationError as error:
        told = explained(error, _BY_KIND[kind])
        raise BadInput(f"faults[{place}] ({kind}): {told}") from error
    return fault
