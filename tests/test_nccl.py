"""BACKEND=nccl and DEVICE=cuda on whole cases: everything as on a GPU, but that the GPU is
``fake_cuda``'s and that gloo stands where NCCL would.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from testbed import protocols
from testbed.bench import cost
from testbed.bench.measure import run
from testbed.bench.plans import CostPlan, Model, PipelinePlan, Point, Setting
from testbed.bench.ranks.life import run_rank as bench_life
from testbed.device import driver
from testbed.model.events import MODEL, About, Enter
from testbed.model.record import RunRecord
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology, told_tag
from testbed.model.verdict import Outcome, Verdict
from testbed.oracles import judge
from testbed.protocols import Groups
from testbed.protocols.agreement import TAG
from testbed.rank import groups as meet
from testbed.rank import over_nccl
from testbed.rank.groups import place_on_machine
from testbed.sessions import catalog
from tests.fake_cuda import FakeCuda
from tests.rig import Rig, of_kind
from tests.whole_case import run_case

SOUND = ("batched", "separate", "fused", "deferred", "world")


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ranks forked from here find."""
    monkeypatch.setattr(driver, "TorchCuda", FakeCuda)
    monkeypatch.setattr(over_nccl, "BACKEND", "gloo")
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def builtin(name: str, topology: str = "pp2tp2", subject: str = "batched") -> Scenario:
    (scenario,) = catalog.load([name])
    return scenario.but(topology=Topology.parse(topology), subject=subject)


def operations(record: RunRecord, *, model: bool) -> list[Enter]:
    """Collectives and messages, of the model or of the subject."""
    return [
        event
        for rank in record.ranks
        for event in of_kind(list(rank.events), Enter)
        if (event.caller == MODEL) == model and not event.op.startswith("wait")
    ]


def told(verdict: Verdict) -> tuple[object, ...]:
    return (verdict.outcome, verdict.oracle, verdict.step, verdict.ranks, verdict.summary)


def test_the_model_goes_over_nccl_and_the_agreement_over_gloo(tmp_path: Path) -> None:
    record = run_case(builtin("skew-followers-slower-1").but(backend="nccl"), tmp_path)

    model, agreement = (operations(record, model=of_model) for of_model in (True, False))
    assert {call.op for call in model} == {"all_reduce", "isend", "recv"}
    assert all(call.group.endswith("@nccl") for call in model)
    assert agreement
    assert not any(call.group.endswith("@nccl") for call in agreement)
    assert judge(record).outcome is Outcome.OK


@pytest.mark.parametrize("subject", SOUND)
def test_the_agreement_may_go_over_nccl_too(subject: str, tmp_path: Path) -> None:
    scenario = builtin("storage-clean", subject=subject)
    record = run_case(scenario.but(backend="nccl", agree_on="nccl", device="cuda"), tmp_path)

    agreement = operations(record, model=False)
    assert agreement
    assert all(call.group.endswith("@nccl") for call in agreement)
    assert record.promises["budget"] == subject  # so its oracle had something to hold it to
    assert judge(record).outcome is Outcome.OK


def test_without_tags_a_pair_of_ranks_has_one_stream_of_messages(tmp_path: Path) -> None:
    scenario = builtin("skew-followers-slower-1", "pp2tp1")
    record = run_case(scenario.but(backend="nccl", agree_on="nccl"), tmp_path)

    sender, receiver = (of_kind(list(rank.events), Enter) for rank in record.ranks)
    sent = [(call.ordinal, call.tag, call.caller) for call in sender if call.op == "isend"]
    received = [(call.ordinal, call.tag, call.caller) for call in receiver if call.op == "recv"]
    assert [ordinal for ordinal, _, _ in sent] == list(range(2 * scenario.steps))
    assert len({tag for _, tag, _ in sent}) == 2
    assert received == sent


def test_without_tags_a_stage_that_runs_behind_takes_counts_for_activations(
    tmp_path: Path,
) -> None:
    """It asks for the next microbatch before the agreement of this step: over gloo two tags keep
    the two apart, over NCCL the order alone decides."""
    scenario = builtin("fault-microbatch-lag").but(backend="nccl", device="cuda")
    apart, mixed = (
        judge(run_case(scenario.but(agree_on=agree_on), _folder(tmp_path, agree_on)))
        for agree_on in ("gloo", "nccl")
    )

    assert apart.outcome is Outcome.OK
    assert (mixed.outcome, mixed.oracle, mixed.step) == (Outcome.VIOLATION, "pairing", 0)
    assert mixed.summary == (
        "pp[tp0]@nccl 0->2: rank 2: received it as float32[64] under tag 0: NCCL knows no tags, "
        f"only the order; rank 0: sent int32[2] under tag {told_tag(TAG)}"
    )


def test_context_parallel_ranks_reduce_over_nccl_as_well(tmp_path: Path) -> None:
    scenario = builtin("skew-cp-peer-slower-3", "pp2tp1cp2")
    record = run_case(scenario.but(backend="nccl", agree_on="nccl"), tmp_path)

    reduced = {call.group for call in operations(record, model=False) if call.op == "all_reduce"}
    assert reduced == {"cp[pp0tp0]@nccl"}
    assert judge(record).outcome is scenario.expected.verdict


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("skew-followers-slower-3", "batched"),
        ("skew-followers-faster", "separate"),
        ("skew-followers-ms", "fused"),
        ("storage-sidecar", "batched"),
        ("prefill-3k5", "batched"),
        ("claim-one-agreement", "separate"),
        ("none-controller-leader", "batched"),
        ("bug-no-wait", "bug:no-wait"),
        ("bug-any-ready", "bug:any-ready"),
        ("fault-out-of-order-follower", "batched"),
        ("skew-followers-slower-3", "sglang==0.5.19"),
    ],
)
def test_real_events_end_in_the_verdict_of_fake_ones(
    name: str, subject: str, tmp_path: Path
) -> None:
    scenario = builtin(name, subject=subject)

    fake, real = (
        run_case(scenario.but(device=device), _folder(tmp_path, device))
        for device in ("cpu", "cuda")
    )

    assert told(judge(real)) == told(judge(fake))
    assert judge(real).outcome is scenario.expected.verdict


class Reduced(Exception):
    """An all_reduce was given a tensor."""


@pytest.mark.parametrize("protocol", protocols.REGISTRY)
@pytest.mark.parametrize("stages", [1, 2])
def test_every_protocol_reduces_where_its_groups_want_the_tensors(
    protocol: str, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_reduce(tensor: torch.Tensor, **_: object) -> None:
        raise Reduced(tensor.device.type)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    group: Any = object()
    elsewhere = torch.device("meta")
    groups = Groups(Topology(stages, 2, 1), 0, tp=group, pp=group, world=group, device=elsewhere)
    rig = Rig(protocol, groups=groups)
    rig.write([1])

    with pytest.raises(Reduced, match="meta"):
        rig.step()


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("rank", "place"), [(1, 1), (3, 1), (5, 3), (7, 3)])
def test_a_rank_knows_its_place_among_those_of_its_machine(
    rank: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines with two hosts each: the second host of either has ranks 1 and 5, or 3 and 7."""
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)

    assert place_on_machine(rank) == place


def test_the_record_says_what_it_ran_on(tmp_path: Path) -> None:
    record = run_case(builtin("skew-followers-slower-1", "pp1tp1").but(device="cuda"), tmp_path)

    (about,) = of_kind(list(record.ranks[0].events), About)
    assert about.versions["gpu"] == "no GPU"
    assert "nccl" in about.versions


def test_only_one_module_calls_cuda_and_only_a_rank_makes_a_device() -> None:
    """A host forks, so it must never initialise CUDA."""
    root = Path(over_nccl.__file__).parents[1]
    sources = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}

    def using(text: str) -> set[str]:
        return {name for name, source in sources.items() if text in source}

    # The others only speak of it.
    assert using("= torch.cuda") == {"device/driver.py"}
    assert using("torch.cuda.") <= {
        "device/driver.py",
        "device/cuda.py",
        "scripted_events.py",
        "measure/gpu_check.py",
    }
    assert using("TorchCuda(") == {"device/cuda.py"}
    assert using("CudaDevice(") == {
        "rank/groups.py",
        "measure/bench_copies.py",  # which forks nothing
    }


class Here:
    """A fleet whose ranks are forked from the test itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, scenario: Scenario) -> RunRecord:
        """Run the plan in it."""
        return run_case(scenario, self._folder, bench_life)


@pytest.fixture
def agreed_over_nccl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Ranks that have only what NCCL's groups give them for their agreement."""
    made = over_nccl.add_nccl

    def only_nccl(groups: Groups, *rest: Any, agree: bool) -> Any:
        bare = replace(groups, tp=None, cp=None, pp=None)
        (tmp_path / f"rank{groups.rank}").touch()
        return made(bare, *rest, agree=agree)

    monkeypatch.setattr(meet, "add_nccl", only_nccl)
    yield
    assert list(tmp_path.glob("rank*")), "no rank asked for NCCL"


@pytest.mark.usefixtures("agreed_over_nccl")
@pytest.mark.parametrize("subject", SOUND)
def test_the_benchmark_sets_a_step_over_nccl_against_its_operations_over_nccl(
    subject: str, tmp_path: Path
) -> None:
    plan = CostPlan(subjects=[subject], rounds=1, block=3, warmup=1)
    rows = cost.measure(Here(tmp_path), plan, Topology(2, 2), Setting(backend="nccl"))
    assert {row["way"] for row in rows} == {"raw", "plain", "recorded"}
    assert all(row["ops"] > 0 for row in rows)
    assert all(row["x_raw"]["median"] > 0 for row in rows if row["way"] != "raw")


@pytest.mark.usefixtures("agreed_over_nccl")
def test_the_benchmarks_pipeline_goes_over_the_models_groups(tmp_path: Path) -> None:
    point = Point(length=100, step_us=100.0, steps=3)
    plan = PipelinePlan(subjects=["batched"], rounds=1, model=Model(), points=[point])
    found = run(Here(tmp_path), plan, Topology(2, 1), Setting(backend="nccl"))
    assert len(found) == 2
    assert all(of[0]["pipeline"] for of in found.values())
