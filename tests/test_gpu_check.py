"""gpu-check and test-nccl: what they run, what page they write, and what they say without a GPU."""

from pathlib import Path
from typing import Any

import pytest

from testbed.device import gpus
from testbed.measure import gpu_check, nccl_suite, same_verdicts
from testbed.measure.gpu_check import Job
from testbed.measure.parts import run_part
from testbed.sessions import catalog


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gpus, gpu_check):
        monkeypatch.setattr(module, "why_none", lambda: "this machine has no GPU (none)")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "why_none", lambda: "")
    monkeypatch.setattr(gpus, "check_usable", lambda: 2)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_test_nccl_is_skipped_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert nccl_suite.main([]) == 0
    assert capsys.readouterr().out == "test-nccl: skipped: this machine has no GPU (none)\n"


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_there_is_nothing_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"

    assert gpu_check.main(["--out", str(page)]) == 3
    assert "gpu-check: this machine has no GPU (none): run it where" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("given", "world"), [([], "2"), (["--world", "1"], "1")])
def test_the_world_is_as_many_ranks_as_there_are_gpus_unless_fewer_are_asked_for(
    given: list[str], world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    class Ended:
        returncode = 5

    def run(command: list[str]) -> Ended:
        ran.append(command)
        return Ended()

    monkeypatch.setattr("subprocess.run", run)

    assert nccl_suite.main([*given, "-k", "skew"]) == 5
    (command,) = ran
    assert command[command.index("--world") + 1] == world
    assert command[-2:] == ["-k", "skew"]


@pytest.mark.usefixtures("two_gpus")
def test_more_ranks_than_gpus_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert nccl_suite.main(["--world", "3"]) == 2
    assert capsys.readouterr().err == (
        "test-nccl: NCCL needs a GPU per rank: WORLD is 3, there are 2 GPUs here: give 1 to 2\n"
    )


def test_what_gpu_check_names_is_there() -> None:
    catalog.load(gpu_check.SCENARIOS)  # raises for a name that is none
    for job in gpu_check.jobs(whole=False):
        for word in job.command:
            assert not word.endswith(".py") or Path(word).is_file()


def test_the_page_tells_when_on_what_and_what_was_seen(tmp_path: Path) -> None:
    jobs = [
        Job("greeting", ("python", "-c", "print('hello')"), shown=True),
        Job("quiet", ("python", "-c", "print('not on the page')")),
        Job("broken", ("python", "-c", "print('what went wrong'); raise SystemExit(1)")),
    ]
    parts = [run_part(job.name, job.command, tmp_path / job.name) for job in jobs]

    page = gpu_check.page(jobs, parts, {"torch": "9.9"})

    lines = page.splitlines()
    assert lines[0].startswith("# GPU check of 20")
    assert "- torch: 9.9" in lines
    (told,) = [line for line in lines if line.startswith("| broken | failed |")]
    assert told.endswith("| what went wrong |")
    assert [line for line in lines if line.startswith("## ")] == [
        "## greeting: ok",
        "## quiet: ok",
        "## broken: failed",
    ]
    assert "hello" in lines
    assert "not on the page" not in lines


def row(**changes: Any) -> dict[str, Any]:
    return {"verdict": "ok", "oracle": None, "step": None, "ranks": [], **changes}


def test_verdicts_are_the_same_only_with_step_and_ranks() -> None:
    fake = {"a": row(), "b": row(verdict="violation", oracle="safety", step=2, ranks=[1])}
    late = {"a": row(), "b": row(verdict="violation", oracle="safety", step=3, ranks=[1])}

    assert all(same_verdicts.alike(fake, fake, name) for name in fake)
    assert not same_verdicts.alike(fake, late, "b")
    assert not same_verdicts.alike(fake, {}, "a")
    assert same_verdicts.table(fake, late).splitlines()[-1] == (
        "| b | violation by safety, step 2, ranks 1 | violation by safety, step 3, ranks 1 "
        "| DIFFERENT |"
    )


def test_both_ways_are_really_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_verdicts, "REAL", "cpu")  # where there is no GPU

    assert same_verdicts.main(["bug-no-wait", "empty-all"]) == 0
    told = capsys.readouterr().out
    assert "| bug-no-wait | violation by safety, step" in told
    assert told.endswith("2 scenarios, 0 of them ended otherwise on the GPU\n")
