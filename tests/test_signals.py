"""SIGTERM and Ctrl-C in the middle of the work: what has run is told and kept, the rest is not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from testbed.console import output
from tests.processes import await_gone, await_true, descendants

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = pytest.mark.parametrize(
    ("signum", "status", "said"),
    [(signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGINT, 130, "interrupted")],
    ids=["SIGTERM", "SIGINT"],
)
MATRIX = ["--subjects=batched,fused,separate,deferred", "--scenarios=skew-*"]
COMPARE = ["batched", "fused", "--scenarios=skew-*"]
Ended = tuple[int, str, str]


def cut_short(
    command: list[str], work: Path, signum: int, reached: Callable[[], object], **extra: str
) -> Ended:
    """Start it in ``work``, send the signal once ``reached()``; its status and what it said. None
    of its processes may be left.
    """
    running = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT), **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        await_true(lambda: running.poll() is not None or reached())
        below = descendants(running.pid)
        running.send_signal(signum)
        said, complained = running.communicate(timeout=60)
    finally:
        running.kill()
    assert await_gone(below) == []
    return running.returncode, said, complained


def judged(out: Path) -> set[Path]:
    """The runs that are over. The newest session's folder has two names."""
    return {path.resolve() for path in out.glob("*/runs/*/verdict.json")}


def kept(out: Path) -> tuple[list[Any], int]:
    """The rows of the session's results, and how many tests its junit.xml has."""
    runs: list[Any] = json.loads((out / "latest" / "results.json").read_text())["runs"]
    suite = ElementTree.parse(out / "latest" / "junit.xml").getroot()
    return runs, int(suite.attrib["tests"])


@SIGNALS
@pytest.mark.parametrize(
    "command",
    [["run", "skew-*"], ["matrix", *MATRIX], ["compare", *COMPARE]],
    ids=lambda command: command[0],
)
def test_what_a_command_has_run_is_told_and_kept(
    tmp_path: Path, command: list[str], signum: int, status: int, said: str
) -> None:
    out = tmp_path / "reports" / "out"
    ended = cut_short(["testbed", *command], tmp_path, signum, lambda: len(judged(out)) >= 3)
    runs, tests = kept(out)
    assert ended[0] == status
    assert len(runs) == tests >= 2
    assert f"{len(runs)} {'runs' if command[0] == 'run' else 'cells'}" in ended[1]
    assert ended[2].splitlines()[-1] == f"testbed: {said}"
    assert "Traceback" not in ended[2]


@SIGNALS
def test_what_a_pytest_session_has_run_is_told_and_kept(
    tmp_path: Path, signum: int, status: int, said: str
) -> None:
    out = tmp_path / "out"
    command = ["pytest", str(ROOT / "cases" / "test_skew.py"), "--rootdir", str(ROOT)]
    command += ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    more = [f"--runs-out={out}", "-k", "batched"]
    ended = cut_short([*command, *more], ROOT, signum, lambda: len(judged(out)) >= 3)
    runs, tests = kept(out)
    assert ended[0] == status
    assert len(runs) >= 2
    assert tests >= len(runs) - 1  # the test that was cut short may have run its case
    assert f"{len(runs)} runs" in ended[1]


@SIGNALS
def test_a_hunt_says_how_far_it_came(tmp_path: Path, signum: int, status: int, said: str) -> None:
    seen = tmp_path / "seen"
    # A hunt keeps no runs: its fleet makes a mark after the third case.
    (tmp_path / "sitecustomize.py").write_text(f"""
import os
from pathlib import Path
if "TESTBED_LAUNCH" not in os.environ:
    from testbed.fleet import Fleet
    run = Fleet.run
    def counted(fleet, scenario):
        record = run(fleet, scenario)
        if fleet._cases == 3:
            Path({str(seen)!r}).touch()
        return record
    Fleet.run = counted
""")
    command = ["testbed.measure.soak", "--subject=batched", "--world=1"]
    ended = cut_short(
        command,
        tmp_path,
        signum,
        lambda: seen.exists(),
        PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}",
    )
    assert ended[0] == status
    assert ended[1].startswith("batched: ")
    assert "runs, then interrupted, seed 0: nothing found" in ended[1]
    assert ended[2].splitlines()[-1] == f"soak: {said}"


@SIGNALS
def test_the_sections_that_a_benchmark_has_measured_are_told_and_kept(
    tmp_path: Path, signum: int, status: int, said: str
) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "sitecustomize.py").write_text(f"""
import os
from pathlib import Path
if "TESTBED_LAUNCH" not in os.environ:
    from testbed.bench import stall
    measure = stall.measure
    def seen(*args):
        Path({str(seen)!r}).touch()
        return measure(*args)
    stall.measure = seen
""")
    command = ["testbed", "bench", "--quick", "--only=cost,stall", "--subjects=batched"]
    ended = cut_short(
        [*command, "--world=2", f"--out={tmp_path / 'bench'}"],
        tmp_path,
        signum,
        lambda: seen.exists(),
        PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}",
    )
    assert ended[0] == status
    assert "kept in" in ended[1]
    (file,) = (tmp_path / "bench").glob("*.json")
    sections = json.loads(file.read_text())["sections"]
    assert "cost" in sections
    assert "stall" not in sections
    assert ended[2].splitlines()[-1] == f"testbed: {said}"


@pytest.fixture
def nobody_handles_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("nobody_handles_sigterm")
def test_the_second_of_two_signals_does_not_disturb_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: list[str] = []

    def program() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            told.append("the table")
        return 0

    assert output.ended("mine", program) == 143
    assert told == ["the table"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert capsys.readouterr().err == "mine: ended by SIGTERM\n"


@pytest.mark.usefixtures("nobody_handles_sigterm")
def test_who_handles_sigterm_already_goes_on_doing_so() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))

    def program() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 7

    assert output.ended("mine", program) == 7
    assert seen == [signal.SIGTERM]
