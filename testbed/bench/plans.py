"""What the ranks of the benchmark are told to do, as data: it travels as a scenario's workload.

Times are microseconds unless a name says otherwise.
"""

from typing import Any, Literal

import msgspec

from testbed.model.scenario import Scenario
from testbed.model.topology import Topology

SEPARATOR = ","
"""Between subjects in ``Scenario.subject``: hosts prepare each of them before they fork."""

RAW, PLAIN, RECORDED = "raw", "plain", "recorded"
"""Ways to run a step: its bare operations; the subject; the subject with the recorder beneath."""

_DEADLINE_MS = 120_000


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Base of all plans. rounds: how often the whole row of A B A B is gone through."""

    subjects: list[str]
    rounds: int


class CostPlan(Plan, frozen=True, kw_only=True, tag="cost"):
    """Steps with nothing to complete, of each subject in each of ``ways``.

    block: timed steps at a time; warmup: steps before them that are not. pending: ACKs in each
    queue whose event is not ready, so that the leader has something to ask.
    """

    ways: tuple[str, ...] = (RAW, PLAIN, RECORDED)
    block: int = 50
    warmup: int = 10
    pending: int = 1


class SkewPlan(Plan, frozen=True, kw_only=True, tag="skew"):
    """One write a step, whose event is ready at once on the leader stage and ``skew_us`` later on
    the followers. step_us: what a step takes besides the check."""

    skews_us: list[float]
    step_us: float
    steps: int


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is modelled around the agreement.

    chunk_tokens: tokens a step computes at most. shared_prefix: fraction of a request that is found
    on host and loaded. kv_bytes_per_token: of one rank. link_gb_s, link_latency_us: of one rank's
    link between device and host, each direction for itself. burn: compute keeps the core busy
    instead of sleeping. activation_floats: length of the real message from stage to stage.
    """

    chunk_tokens: int = 8192
    shared_prefix: float = 0.5
    kv_bytes_per_token: int = 32768
    link_gb_s: float = 25.0
    link_latency_us: float = 20.0
    burn: bool = False
    activation_floats: int = 1024


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One setting of the pipeline. length: input tokens of a request. us_per_token: compute of one
    stage. step_us: compute of one stage and step, whatever its tokens; None: by the token. steps:
    how many to run."""

    length: int
    us_per_token: float = 0.0
    step_us: float | None = None
    steps: int


class PipelinePlan(Plan, frozen=True, kw_only=True, tag="pipeline"):
    """A prefill-only pipeline at each point, one subject after the other."""

    model: Model
    points: list[Point]


AnyPlan = CostPlan | SkewPlan | PipelinePlan


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all plans of a run are run with. storage: with storage queues, agreed on as well.
    backend: what the agreement and the pipeline go over, gloo or nccl."""

    seed: int = 0
    storage: bool = False
    backend: Literal["gloo", "nccl"] = "gloo"


def scenario_of(plan: AnyPlan, topology: Topology, setting: Setting) -> Scenario:
    """The case in which a fleet's hosts find the plan."""
    workload: dict[str, Any] = msgspec.to_builtins(plan)
    return Scenario(
        name=f"bench-{workload['kind']}",
        topology=topology,
        subject=SEPARATOR.join(plan.subjects),
        workload=workload,
        seed=setting.seed,
        storage=setting.storage,
        backend=setting.backend,
        agree_on=setting.backend,
        deadline_ms=_DEADLINE_MS,
        # The shared log of a rank has room in proportion to its steps.
        steps=4096,
    )


def plan_of(scenario: Scenario) -> AnyPlan:
    """The plan in it. Raises msgspec.ValidationError for one that this testbed did not make."""
    plan: AnyPlan = msgspec.convert(scenario.workload, AnyPlan)
    return plan
