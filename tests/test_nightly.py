"""The nightly run over a stand-in for make: what each target's end makes of the whole."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.measure import nightly

ROOT = Path(__file__).parents[1]

MAKE = """#!/bin/sh
echo "$*" >>calls
case " $* " in
    *" nightly "*) eval "$NIGHTLY" ;;
    *" test-nccl "*) echo "test-nccl: skipped: this machine has no GPU (no nvidia-smi)" ;;
    *" test-bugs "*) mkdir -p reports/out/bugs/s1; echo page >reports/out/bugs/s1/summary.md
               echo "==== 30 passed in 2 s ====" ;;
    *" matrix "*) eval "$MATRIX" ;;
    *) echo "fine" ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a make of its own."""
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    monkeypatch.setenv("PATH", str(make.parent), prepend=":")
    monkeypatch.setenv("MATRIX", "echo all as expected")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_target_runs_and_the_summary_names_what_was_skipped_and_made(place: Path) -> None:
    assert nightly.main([]) == 0

    summary = (place / "reports/out/nightly/latest/summary.md").read_text()
    assert summary.splitlines()[0].endswith(": nothing failed; skipped: test-nccl")
    called = [line.split()[-1] for line in (place / "calls").read_text().splitlines()]
    assert called == list(nightly.TARGETS)
    assert "| test-bugs | ok |" in summary
    assert "30 passed in 2 s |" in summary
    assert "- reports/out/bugs/s1/summary.md" in summary


def test_a_target_that_fails_stops_no_other_and_fails_the_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "MATRIX", "echo 2 cells differ; echo 'make: *** [Makefile:9: matrix] Error 1'; exit 2"
    )

    assert nightly.main([]) == 1

    summary = (place / "reports/out/nightly/latest/summary.md").read_text()
    assert ": failed: matrix; skipped: test-nccl\n" in summary
    assert "| matrix | failed |" in summary
    assert "| 2 cells differ |" in summary
    assert "| bench-pp | ok |" in summary


def test_a_target_that_there_is_not_is_a_failure(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(
        "MATRIX", "echo \"make: *** No rule to make target 'matrix'. Stop.\"; exit 2"
    )

    assert nightly.main([]) == 1
    assert "No rule to make target 'matrix'" in capsys.readouterr().out


def test_reports_of_an_earlier_night_are_not_named(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
        (tmp_path / name / "summary.md").touch()
    (tmp_path / "latest").symlink_to("new")
    os.utime(tmp_path / "old" / "index.html", (1000, 1000))
    os.utime(tmp_path / "old" / "summary.md", (1000, 1000))

    assert nightly.made_since(tmp_path, 2000) == [tmp_path / "new" / "index.html"]


@pytest.fixture
def checkout(place: Path) -> Path:
    """nightly.sh in a checkout of its own."""
    (place / "launchers").mkdir()
    shutil.copy(ROOT / "launchers" / "nightly.sh", place / "launchers")
    return place


def run_script(checkout: Path, does: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "launchers" / "nightly.sh", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "NIGHTLY": does},
        cwd="/",
    )


def test_cron_hears_nothing_of_a_good_night(checkout: Path) -> None:
    run = run_script(checkout, "echo lots of lines", "VENV=")

    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert (checkout / "reports/out/nightly.log").read_text() == "lots of lines\n"


def test_cron_is_told_the_summary_of_a_bad_one(checkout: Path) -> None:
    latest = "reports/out/nightly/latest"
    does = f"mkdir -p {latest}; echo two failed >{latest}/summary.md; exit 2"
    run = run_script(checkout, does)

    assert (run.returncode, run.stdout) == (2, "two failed\n")


def test_cron_is_told_the_log_where_there_is_no_summary(checkout: Path) -> None:
    run = run_script(checkout, "echo no interpreter; exit 2")

    assert (run.returncode, run.stdout) == (2, "no interpreter\n")


def test_two_nights_do_not_overlap(checkout: Path) -> None:
    lock = checkout / "reports/out/nightly.lock"
    lock.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        ["flock", lock, sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    run = run_script(checkout, "echo must not run")
    holder.communicate(b"\n")

    assert run.returncode == 3
    assert run.stderr.startswith("nightly: the run before this one has not ended")
    assert not (checkout / "calls").exists()
