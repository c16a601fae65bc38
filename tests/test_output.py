"""Programs end in one line where their output cannot be written, whichever of them it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.console import output
from testbed.model.errors import BadInput, EnvironmentFault

ROOT = Path(__file__).parents[1]
LIMIT_S = 60
# What says something at once, without a fleet.
PROGRAMS = [
    ["-m", "testbed.measure.soak", "--help"],
    ["-m", "testbed.measure.soak_faults", "--help"],
    ["-m", "testbed.measure.bench_copies", "--help"],
    ["-m", "reports.results"],
    ["-m", "testbed.measure.gpu_check", "--help"],
    ["-m", "testbed.measure.nightly", "--help"],
    ["-m", "testbed.measure.same_verdicts", "--help"],
    ["-m", "testbed.measure.nccl_suite", "--help"],
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[1])
def test_a_full_standard_output_is_one_line_and_3(program: list[str]) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, *program],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
        )

    name, _, said = run.stderr.partition(": ")
    assert (run.returncode, said) == (
        3,
        "standard output cannot be written: No space left on device\n",
    )
    assert name


def test_a_reader_that_has_left_ends_a_hunt_without_a_word() -> None:
    source = "from testbed.measure import soak; "
    source += "soak.hunt = lambda *_: soak.Hunt('s', 1, 0.0, None, None)"
    source += "; import sys; from tests.fake_fleet import FakeFleet; soak.Fleet = FakeFleet"
    source += "; sys.exit(soak.main(['--subject', 'batched,fused']))"
    reader, writer = os.pipe()
    os.close(reader)
    hunt = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
    )
    os.close(writer)

    assert (hunt.returncode, hunt.stderr) == (1, "")


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (BadInput("no such thing"), 2, "mine: no such thing\n"),
        (EnvironmentFault("no\nroom"), 3, "mine: no room\n"),
        (KeyboardInterrupt(), 130, "mine: interrupted\n"),
    ],
)
def test_what_ends_a_program_is_one_line_with_its_name(
    capsys: pytest.CaptureFixture[str], raised: BaseException, status: int, said: str
) -> None:
    def program() -> int:
        raise raised

    assert output.ended("mine", program) == status
    assert capsys.readouterr() == ("", said)


def test_a_program_that_ends_by_itself_has_its_own_status() -> None:
    assert output.ended("mine", lambda: 7) == 7
