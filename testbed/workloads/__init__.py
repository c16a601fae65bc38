"""What a run puts through the cache: scripted transfers, generated requests, request traces.

``parse`` checks a scenario's workload, here as on every rank; ``assemble`` puts one rank together.
Whatever a workload decides on a rank follows from the scenario and the rank's tree, never from wall
time.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from testbed.model.errors import BadInput, brief
from testbed.model.scenario import Scenario, explained
from testbed.workloads import conversation, prefill, scripted, trace
from testbed.workloads.base import Spec

# kind -> the Struct of its keys, what makes a plan of it, and what it is.
_KINDS: dict[str, tuple[Any, Callable[[Any, Scenario], Spec], str]] = {
    "scripted": (
        scripted.ScriptedSpec,
        scripted.plan,
        "writes, loads and storage items listed one by one",
    ),
    "prefill": (
        prefill.PrefillSpec,
        prefill.plan,
        "requests of given lengths that share prefixes",
    ),
    "conversation": (
        conversation.ConversationSpec,
        conversation.plan,
        "requests of a generated conversation trace",
    ),
    "trace": (trace.TraceSpec, trace.plan, "requests from a Mooncake JSONL file"),
}
KINDS: dict[str, str] = {kind: summary for kind, (_, _, summary) in _KINDS.items()}


def parse(scenario: Scenario) -> Spec:
    """The scenario's workload, checked; a trace file is read. Raises BadInput naming what is
    wrong.
    """
    given = scenario.workload
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadInput(f"workload.kind is {brief(kind)}: give one of {', '.join(_KINDS)}")
    struct, plan, _ = _KINDS[kind]
    return plan(_convert(given, struct), scenario)


def structs() -> dict[str, Any]:
    """Workload kind -> the Struct that reads its keys."""
    return {kind: struct for kind, (struct, _, _) in _KINDS.items()}


def _convert(given: dict[str, Any], spec: Any) -> Any:
    try:
        return msgspec.convert(given, spec)
    except msgspec.ValidationError as error:
        raise BadInput(f"workload: {explained(error, spec)}") from error
