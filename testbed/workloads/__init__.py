"""What a run puts through the cache: scripted transfers, generated requests, request traces.

``parse`` checks a scenario's workload, here as on every rank; ``assemble`` puts one rank together.
Whatever a workload decides on a rank follows from the scenario and the rank's tree, never from wall
time.
"""

from typing import Any

import msgspec

from testbed.errors import BadInput
from testbed.scenario import Scenario
from testbed.workloads import prefill, scripted, trace
from testbed.workloads.base import Spec

KINDS: dict[str, str] = {
    "scripted": "writes, loads and storage items listed one by one",
    "prefill": "requests of given lengths that share prefixes",
    "trace": "requests from a Mooncake JSONL file",
}


def parse(scenario: Scenario) -> Spec:
    """The scenario's workload, checked; a trace file is read. Raises BadInput naming what is
    wrong.
    """
    given = scenario.workload
    kind = given.get("kind")
    if kind == "scripted":
        return scripted.plan(_convert(given, scripted.ScriptedSpec), scenario)
    if kind == "prefill":
        return prefill.plan(_convert(given, prefill.PrefillSpec), scenario)
    if kind == "trace":
        return trace.plan(_convert(given, trace.TraceSpec), scenario)
    raise BadInput(f"workload.kind is {kind!r}: give one of {', '.join(KINDS)}")


def _convert(given: dict[str, Any], spec: Any) -> Any:
    try:
        return msgspec.convert(given, spec)
    except msgspec.ValidationError as error:
        raise BadInput(f"workload: {error}") from error
