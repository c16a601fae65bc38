"""What a run of the benchmark measures: the sections, and the plan of each. Pure."""

from dataclasses import dataclass

import msgspec

from testbed.bench.plans import PLAIN, RAW, CostPlan, Model, PipelinePlan, Point, SkewPlan
from testbed.model.errors import BadInput

SECTIONS = ("cost", "stall", "throughput", "curve", "scaling")
LENGTHS = (3584, 32768, 131072)
_SKEWS_US = (0.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0)
_CURVE_US = (0.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0, 12800.0)
_CURVE_LENGTH = 32768
_STALL_STEP_US = 1000.0


@dataclass(frozen=True)
class Effort:
    """How much is measured. rounds: of every section, each of which goes through all subjects.
    block: counted steps of ``cost`` at a time. point_s: seconds that a point of the pipeline may
    take, roughly."""

    rounds: int
    block: int
    point_s: float


FULL, QUICK = Effort(rounds=20, block=50, point_s=0.6), Effort(rounds=3, block=10, point_s=0.1)


def cost(effort: Effort, subjects: list[str]) -> CostPlan:
    """Every subject, three ways."""
    return CostPlan(subjects=subjects, rounds=effort.rounds, block=effort.block)


def scaling(effort: Effort, subjects: list[str]) -> CostPlan:
    """Every subject and its bare operations; a quarter of the steps, since ranks are many."""
    rounds, block = max(effort.rounds // 2, 2), max(effort.block // 2, 5)
    return CostPlan(subjects=subjects, rounds=rounds, block=block, warmup=4, ways=(RAW, PLAIN))


def stall(effort: Effort, subjects: list[str]) -> SkewPlan:
    """Skews from none to several steps."""
    return SkewPlan(
        subjects=subjects,
        rounds=max(effort.rounds // 5, 2),
        skews_us=list(_SKEWS_US),
        step_us=_STALL_STEP_US,
        steps=max(effort.block // 2, 5),
    )


def throughput(
    effort: Effort, subjects: list[str], model: Model, us_per_token: float
) -> PipelinePlan:
    """Each length of input, computed by the token."""
    steps = _steps(effort, us_per_token * model.chunk_tokens)
    points = [Point(length=length, us_per_token=us_per_token, steps=steps) for length in LENGTHS]
    rounds = max(effort.rounds // 4, 2)
    return PipelinePlan(subjects=subjects, rounds=rounds, model=model, points=points)


def curve(effort: Effort, pair: list[str], model: Model) -> PipelinePlan:
    """Compute per step from nothing to what hides any agreement."""
    points = [
        Point(length=_CURVE_LENGTH, step_us=step_us, steps=_steps(effort, step_us))
        for step_us in _CURVE_US
    ]
    rounds = max(effort.rounds // 2, 3)
    return PipelinePlan(subjects=pair, rounds=rounds, model=model, points=points)


def _steps(effort: Effort, compute_us: float) -> int:
    # A step costs half a millisecond or so without any compute.
    return min(max(round(effort.point_s * 1e6 / (compute_us + 500)), 10), 400)


def told(plan: msgspec.Struct) -> str:
    """The plan in one line of JSON, for whoever wants to run the same."""
    return msgspec.json.encode(plan).decode()


def pair_of(text: str) -> list[str]:
    """``separate,batched`` -> the two. Raises BadInput."""
    parts = text.split(",")
    if len(parts) != 2 or not all(parts):
        raise BadInput(
            f"--gain {text!r}: give two subjects, the slower one first: separate,batched"
        )
    if parts[0] == parts[1]:
        raise BadInput(f"--gain {text!r}: give two subjects that differ")
    return parts


def sections_of(text: str) -> list[str]:
    """``cost,curve`` -> the sections, in the order they run. Raises BadInput."""
    named = text.split(",")
    for name in named:
        if name not in SECTIONS:
            raise BadInput(f"--only {name!r}: give any of {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in named]
