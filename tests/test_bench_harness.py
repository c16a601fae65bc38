"""The benchmark of harnesses: what is read out of what they say, and our own share of it."""

import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.fleet import Fleet
from testbed.measure.harness.__main__ import main, tables
from testbed.measure.harness.case import Kind
from testbed.measure.harness.contender import ended
from testbed.measure.harness.fleet import OnFleet
from testbed.measure.harness.killing import end_all, run_for
from testbed.sessions.store import RunStore


@pytest.mark.parametrize(
    ("said", "told", "names_victim"),
    [
        (
            "Traceback (most recent call last):\n  File x\nRuntimeError: Process 0 exited with 10",
            "RuntimeError: Process 0 exited with 10",
            False,
        ),
        (
            "process 1 terminated with signal SIGKILL",
            "process 1 terminated with signal SIGKILL",
            True,
        ),
        ("root cause: rank       : 1 (local_rank: 1), exitcode : -9", None, True),
        ("rank 10 and process 12 are others", None, False),
        ("", "", False),
    ],
)
def test_what_a_harness_says_is_read_for_its_first_error_and_the_rank_at_fault(
    said: str, told: str | None, names_victim: bool
) -> None:
    case = ended(12.0, said, passed=False)
    assert case.told == (said if told is None else told)
    assert case.names_victim == names_victim


def test_a_case_that_passed_names_nobody() -> None:
    assert not ended(12.0, "process 1", passed=True).names_victim


def test_a_command_that_outlasts_our_patience_has_no_result() -> None:
    assert run_for(["sleep", "60"], 0.1) is None


def test_a_process_is_ended_with_its_children() -> None:
    program = (
        "import subprocess; child = subprocess.Popen(['sleep', '60']);"
        "print(child.pid, flush=True); child.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = os.pidfd_open(int(process.stdout.readline()))
    end_all(process)
    with selectors.DefaultSelector() as waiting:
        waiting.register(child, selectors.EVENT_READ)
        assert waiting.select(60.0), "the child is still there"
    os.close(child)
    process.stdout.close()


def test_a_command_that_ends_by_itself_tells_how() -> None:
    run = run_for([sys.executable, "-c", "import sys; sys.exit('no')"], 60.0)
    assert run is not None
    assert (run.returncode, run.stderr.strip()) == (1, "no")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnFleet]:
    with Fleet(2) as fleet:
        yield OnFleet(fleet, RunStore(tmp_path_factory.mktemp("runs")), 2)


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        (Kind.CRASH, "crash"),
        # A follower that left a round out takes that round's message for the next one's.
        (Kind.SKIPPED, "violation"),
        (Kind.LIVES_ON, "violation"),
    ],
)
def test_the_fleet_names_the_rank_at_fault_and_runs_the_next_case(
    ours: OnFleet, kind: Kind, verdict: str
) -> None:
    struck, after = ours.fault(kind, patience_s=60.0)
    assert struck.told.startswith(verdict)
    assert struck.names_victim
    assert struck.ms is not None
    assert after.passed


def test_the_fleet_counts_null_cases(ours: OnFleet) -> None:
    assert len(ours.null_ms(3)) == 3


def test_the_tables_say_what_was_not_seen_within_the_patience() -> None:
    def case(ms: float | None, told: str) -> dict[str, Any]:
        return {"ms": ms, "told": told, "passed": told == "passed", "names_victim": False}

    spread = {"count": 2, "median": 50.0, "min": 40.0, "max": 60.0}
    slow = {key: value * 100 for key, value in spread.items()}
    found = {
        "command": "python -m testbed.measure.harness",
        "machine": {"cpu": "one", "cores": 2},
        "world": 4,
        "patience_s": 20.0,
        "isolates": {"ours": True, "one torchrun per case": True},
        "null_ms": {"ours": spread, "one torchrun per case": slow},
        "wide_ms": spread,
        "faults": {
            "ours": {"crash": {"struck": case(70, "crash: rank 1"), "after": case(50, "passed")}},
            "theirs": {"lives-on": {"struck": case(None, "no"), "after": case(None, "not run")}},
        },
    }
    told = tables(found)
    assert told.startswith("# python -m testbed.measure.harness\n# cpu one, cores 2\n")
    assert "> 20000" in told
    assert "lost" in told
    assert "a case on the fleet is 100 times cheaper than a torchrun" in told


@pytest.mark.parametrize(
    "wrong",
    [["--world", "1"], ["--cases", "0"], ["--patience", "nan"], ["--patience", "-1"]],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    assert main(wrong) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
