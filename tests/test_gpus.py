"""Which GPUs there are, as a stand-in for nvidia-smi lists them; and what is refused without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cli.command import main
from testbed.cli.doctor import gpus as doctor_gpus
from testbed.device import gpus
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.topology import Topology
from testbed.sessions import execute
from tests.fake_fleet import FakeFleet, scenario

TWO = "GPU 0: NVIDIA H200 (UUID: GPU-aa11)\\nGPU 1: NVIDIA H200 (UUID: GPU-bb22)"


@pytest.fixture(autouse=True)
def forget_gpus() -> Iterator[None]:
    """What a test makes up is not what the next one finds."""
    gpus.listing.cache_clear()
    yield
    gpus.listing.cache_clear()


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nvidia-smi of a machine with two GPUs, and a torch that is built for them."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{TWO}\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv(gpus.VISIBLE_ENV, raising=False)
    monkeypatch.setattr(gpus, "_built_for_cuda", lambda: True)
    return tool


@pytest.fixture
def no_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)


@pytest.mark.usefixtures("smi")
def test_every_gpu_is_listed_with_its_name() -> None:
    assert [(gpu.number, gpu.name, gpu.uuid) for gpu in gpus.listing().gpus] == [
        ("0", "NVIDIA H200", "GPU-aa11"),
        ("1", "NVIDIA H200", "GPU-bb22"),
    ]


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        ("GPU-bb", ["1"]),
        ("0,-1,1", ["0"]),
        ("0,7,1", ["0"]),
        ("", []),
        ("GPU-", []),
    ],
)
def test_cuda_visible_devices_counts_as_cuda_reads_it(
    visible: str, numbers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpus.VISIBLE_ENV, visible)

    listed = gpus.listing()

    assert [gpu.number for gpu in listed.gpus] == numbers
    assert bool(listed.why_none) == (not numbers)


def test_a_driver_that_does_not_answer_is_no_gpu(smi: Path) -> None:
    smi.write_text("#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n")

    listed = gpus.listing()

    assert listed == ((), "nvidia-smi fails: Driver/library version mismatch")
    assert "Driver/library version mismatch" in doctor_gpus().text


@pytest.mark.usefixtures("no_smi")
@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"backend": "nccl"}])
def test_what_needs_a_gpu_is_refused_where_there_is_none(changes: dict[str, str]) -> None:
    with pytest.raises(EnvironmentFault, match=r"^this machine has no GPU \(no nvidia-smi\); "):
        execute.prepare(scenario(**changes))


@pytest.mark.usefixtures("no_smi")
def test_the_command_line_says_so_in_one_line_and_ends_with_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "empty-all", "--device", "cuda"], FakeFleet) == 3

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "this machine has no GPU (no nvidia-smi)" in said


@pytest.mark.usefixtures("smi")
def test_a_torch_without_cuda_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_built_for_cuda", lambda: False)

    with pytest.raises(EnvironmentFault, match="this build of torch has no CUDA: install one"):
        execute.prepare(scenario(device="cuda"))
    assert doctor_gpus().state == "note"


@pytest.mark.usefixtures("smi")
def test_nccl_needs_a_gpu_per_rank_and_says_so_in_one_line() -> None:
    execute.prepare(scenario(topology="pp2tp1", backend="nccl"))

    with pytest.raises(BadInput, match="pp2tp2 has 4 ranks, this machine 2: ") as refused:
        execute.prepare(scenario(topology="pp2tp2", backend="nccl"))
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("smi")
def test_over_gloo_ranks_may_share_a_gpu() -> None:
    execute.prepare(scenario(topology="pp2tp2", device="cuda"))


@pytest.mark.usefixtures("smi")
def test_a_bug_with_its_tensors_on_the_cpu_cannot_agree_over_nccl() -> None:
    over_nccl = scenario(topology="pp2tp1", backend="nccl", agree_on="nccl")
    execute.prepare(over_nccl.but(subject="fused"))

    with pytest.raises(BadInput, match="agrees by tensors on the CPU"):
        execute.prepare(over_nccl.but(subject="bug:no-wait"))


def test_an_agreement_over_nccl_without_nccl_is_refused() -> None:
    with pytest.raises(BadInput, match="agree_on is nccl, backend is gloo: make backend nccl too"):
        scenario(agree_on="nccl")


@pytest.mark.usefixtures("no_smi")
def test_one_gpu_each_is_more_than_none() -> None:
    with pytest.raises(EnvironmentFault, match="this machine has no GPU"):
        gpus.check_one_each(Topology())
