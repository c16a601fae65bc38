"""The pytest plugin, as somebody's own test folder sees it: real pytest, made-up fleet."""

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from testbed import pytest_plugin
from testbed.device import gpus
from testbed.model.errors import EnvironmentFault
from testbed.sessions import catalog
from tests.fake_fleet import FakeFleet

CONFTEST = """
import pytest
from tests.fake_fleet import FakeFleet
pytest_plugins = ["testbed.pytest_plugin"]

@pytest.fixture(scope="session")
def fleet():
    with FakeFleet() as running:
        yield running
"""

TWO_CASES = """
import pytest
from tests.fake_fleet import scenario

@pytest.mark.scenarios(
    scenario("calm"), topologies="pp2tp1 pp2tp2 pp4tp2", subjects="batched fused"
)
def test_calm(scenario, check):
    check(scenario)
"""

CRASH = """
from tests.fake_fleet import scenario

def test_crash(check):
    check(scenario("crash"))
"""


@pytest.fixture(autouse=True)
def _found_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKELEVEL", raising=False)  # `make test` runs these tests too
    monkeypatch.setenv("PYTHONPATH", str(catalog.BUILTIN.parents[1]))


@pytest.fixture
def own(pytester: pytest.Pytester) -> pytest.Pytester:
    """A user's test folder."""
    pytester.makeconftest(CONFTEST)
    return pytester


def results(path: Path) -> list[str]:
    document = msgspec.json.decode((path / "reports/out/latest/results.json").read_bytes())
    return [f"{run['id']} {run['verdict']}" for run in document["runs"]]


def test_scenarios_are_spread_with_ids_one_can_read(own: pytest.Pytester) -> None:
    own.makepyfile(TWO_CASES)
    found = own.runpytest("--collect-only", "-q")
    found.stdout.fnmatch_lines(
        [
            "*::test_calm[[]calm-batched-pp2tp1]",
            "*::test_calm[[]calm-batched-pp2tp2]",
            "*::test_calm[[]calm-batched-pp4tp2]",
            "*::test_calm[[]calm-fused-pp2tp1]",
        ]
    )


def test_a_topology_that_does_not_fit_is_skipped_and_says_so(own: pytest.Pytester) -> None:
    own.makepyfile(TWO_CASES)
    run = own.runpytest("-rs")
    run.assert_outcomes(passed=4, skipped=2)
    run.stdout.fnmatch_lines(["*topology pp4tp2 needs 8 ranks, the fleet has 4: raise --world or*"])


def test_under_make_what_does_not_fit_is_told_in_makes_words(
    own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKELEVEL", "1")
    own.makepyfile(TWO_CASES)
    own.runpytest("-rs").stdout.fnmatch_lines(["*the fleet has 4: raise WORLD="])


def test_options_choose_subject_and_sizes(own: pytest.Pytester) -> None:
    own.makepyfile(TWO_CASES)
    own.runpytest("--subject", "separate", "--pp", "2", "--tp", "2").assert_outcomes(passed=1)
    assert results(own.path) == ["calm-separate-pp2tp2 ok"]


def test_the_table_comes_once_and_lies_beside_the_records(own: pytest.Pytester) -> None:
    own.makepyfile(TWO_CASES)
    run = own.runpytest("--pp", "2")
    run.stdout.fnmatch_lines(
        [
            "*= testbed =*",
            "scenario*subject*topology*verdict*first divergence*",
            "calm*batched*pp2tp1*ok*",
            "4 runs, 4 as expected: 4 ok; kept in reports/out/*",
        ]
    )
    markdown = (own.path / "reports/out/latest/summary.md").read_text()
    assert markdown.count("calm") == 4
    assert len(results(own.path)) == 4


def test_a_failed_case_prints_the_report_and_no_traceback(own: pytest.Pytester) -> None:
    own.makepyfile(test_it=CRASH)
    run = own.runpytest()
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(
        [
            "*_ test_crash _*",
            "* -m testbed replay reports/out/*/runs/crash-batched-pp2tp2",
            "crash at step 0, rank 1, before any operation, expected ok: rank 1 *",
            "* -m testbed replay reports/out/*/runs/crash-batched-pp2tp2",
            "FAILED test_it.py::test_crash - crash at step 0, *",
        ]
    )
    run.stdout.no_fnmatch_line("*def test_crash*")
    assert results(own.path) == ["crash-batched-pp2tp2 crash"]


LINE = "crash at step 0, rank 1, before any operation, expected ok: rank 1 died by SIGKILL, step 0"


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_the_line_that_a_ci_page_shows_is_whole(
    own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CI", "true")
    own.makepyfile(test_it=CRASH)
    run = own.runpytest("--junitxml=theirs.xml", *workers)
    assert f"FAILED test_it.py::test_crash - {LINE}" in run.outlines
    for file in ("theirs.xml", "reports/out/latest/junit.xml"):
        (failure,) = ElementTree.parse(own.path / file).iter("failure")
        assert failure.get("message") == LINE
        lines = str(failure.text).split("\n")
        assert lines[0] == lines[-1]
        assert " -m testbed replay reports/out/" in lines[0]


EVERY_END = """
import pytest
from testbed.sessions.result import RunResult
from tests.fake_fleet import scenario

def test_passes(check):
    check(scenario("calm"))

def test_fails(check):
    check(scenario("crash"))

def test_own_assertion(run_case):
    assert run_case(scenario("calm")).verdict.ranks == (7,)

def test_environment(check):
    check(scenario("environment"))

def test_skips():
    pytest.skip("no such thing here")

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

def test_broken_fixture(broken):
    pass
"""


def test_junit_tells_the_subjects_failures_from_the_testbeds_errors(own: pytest.Pytester) -> None:
    own.makepyfile(test_it=EVERY_END)
    own.runpytest().assert_outcomes(passed=1, failed=3, skipped=1, errors=1)
    root = ElementTree.parse(own.path / "reports/out/latest/junit.xml").getroot()
    told = {
        str(case.get("name")): [(one.tag, one.get("type"), one.get("message")) for one in case]
        for case in root.iter("testcase")
    }
    assert told == {
        "test_passes": [],
        "test_fails": [("failure", "crash", LINE)],
        "test_own_assertion": [("failure", None, told["test_own_assertion"][0][2])],
        "test_environment": [("error", None, "error of the environment: host 0 is gone")],
        "test_skips": [("skipped", None, "no such thing here")],
        "test_broken_fixture": [("error", "setup", "RuntimeError: no fixture")],
    }
    assert "(7,)" in str(told["test_own_assertion"][0][2])
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("6", "2", "2")


PRINTS = """
from dataclasses import replace
import pytest
from tests.fake_fleet import FakeFleet, scenario

class Talks(FakeFleet):
    def run(self, scenario):
        made = super().run(scenario)
        ranks = [replace(rank, output=f"I am {rank.rank}") for rank in made.ranks]
        return replace(made, ranks=tuple(ranks))

@pytest.fixture(scope="session")
def fleet():
    return Talks()

def test_crash(check):
    check(scenario("crash"))
"""


@pytest.mark.parametrize(("option", "ranks"), [([], "1"), (["--ranks=all"], "0123")])
def test_whose_output_is_printed_can_be_chosen(
    own: pytest.Pytester, option: list[str], ranks: str
) -> None:
    own.makepyfile(PRINTS)
    said = own.runpytest(*option).outlines
    assert [line for line in said if "I am" in line] == [f"    I am {rank}" for rank in ranks]


def test_the_session_has_a_page_and_a_summary_for_github(
    own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(own.path / "step.md"))
    own.makepyfile(test_it=CRASH)
    own.runpytest()
    assert "crash-batched-pp2tp2" in (own.path / "reports/out/latest/index.html").read_text()
    assert LINE in (own.path / "step.md").read_text()


def test_a_wrong_setting_of_how_many_sessions_stay_is_a_usage_error(
    own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_KEEP", "0")
    own.makepyfile(CRASH)
    run = own.runpytest()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*TESTBED_KEEP is '0': give a whole number from 1 on, or all"])


def test_run_case_asserts_nothing(own: pytest.Pytester) -> None:
    own.makepyfile(CRASH.replace("check", "run_case"))
    own.runpytest().assert_outcomes(passed=1)
    assert results(own.path) == ["crash-batched-pp2tp2 crash"]


def test_a_failing_environment_is_one_line(own: pytest.Pytester) -> None:
    own.makepyfile(CRASH.replace('"crash"', '"environment"'))
    run = own.runpytest()
    run.stdout.fnmatch_lines(["error of the environment: host 0 is gone"])


def test_a_fleet_that_cannot_start_ends_the_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fleet(world: int, *, oversubscribe: bool, port: int) -> FakeFleet:
        raise EnvironmentFault("torchrun was not found")

    monkeypatch.setattr(pytest_plugin, "Fleet", no_fleet)
    pytester.makeconftest('pytest_plugins = ["testbed.pytest_plugin"]')
    pytester.makepyfile(CRASH)
    run = pytester.runpytest()
    assert run.ret == 3
    run.stdout.fnmatch_lines(["*Exit: testbed: torchrun was not found*"])


NO_FLEET = """
import pytest
from testbed import pytest_plugin
from testbed.model.errors import EnvironmentFault
pytest_plugins = ["testbed.pytest_plugin"]

def no_fleet(world, *, oversubscribe, port):
    raise EnvironmentFault("torchrun was not found")

pytest_plugin.Fleet = no_fleet
"""


def test_a_workers_fleet_that_cannot_start_ends_the_session_in_the_same_words(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(NO_FLEET)
    pytester.makepyfile(CRASH + CRASH.replace("test_crash", "test_again"))
    run = pytester.runpytest_subprocess("-n", "2")
    assert run.ret == 3
    run.stdout.fnmatch_lines(["*Exit: testbed: torchrun was not found*"])
    run.stdout.no_fnmatch_line("*INTERNALERROR*")
    run.stdout.no_fnmatch_line("*Traceback*")


def test_workers_rows_reach_one_table_in_the_order_of_one_process(own: pytest.Pytester) -> None:
    own.makepyfile(TWO_CASES)
    own.runpytest("--pp", "2").assert_outcomes(passed=4)
    alone = results(own.path)
    own.runpytest("--pp", "2", "-n", "2").assert_outcomes(passed=4)
    assert results(own.path) == alone
    assert len(list(own.path.glob("reports/out/latest/runs/*/record.json.gz"))) == 4


def test_a_session_without_cases_leaves_no_folder(own: pytest.Pytester) -> None:
    own.makepyfile("def test_nothing(): pass")
    own.runpytest("-n", "1").assert_outcomes(passed=1)
    assert list(own.path.glob("reports/out/*")) == []


def test_where_runs_are_kept_can_be_chosen(own: pytest.Pytester) -> None:
    own.makepyfile(CRASH)
    own.runpytest("--runs-out", "kept")
    assert (own.path / "kept/latest/runs/crash-batched-pp2tp2/record.json.gz").is_file()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--subject", "nonesuch"], "*nonesuch*"),
        (["--world", "0"], "*--world is 0: give a whole number from 1 to 256"),
        (["--world", "257"], "*--world is 257: give a whole number from 1 to 256"),
        (["--pp", "4", "--tp", "2"], "*topology pp4tp2 needs 8 ranks, the fleet has 4*"),
        (["--pp", "0"], "*topology.pp is 0: give a whole number from 1 on"),
    ],
)
def test_a_bad_option_is_a_usage_error(own: pytest.Pytester, options: list[str], says: str) -> None:
    own.makepyfile(CRASH)
    run = own.runpytest(*options)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([says])


def test_a_scenario_that_is_not_there_fails_the_collection(own: pytest.Pytester) -> None:
    own.makepyfile(TWO_CASES.replace('scenario("calm")', '"nowhere"'))
    run = own.runpytest()
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*bad input: nowhere: no such scenario file*"])


def test_scenario_files_lie_beside_the_test(own: pytest.Pytester) -> None:
    case = '{"name": "mine", "topology": {"pp": 2}, "steps": 2, "workload": {"kind": "scripted"}}'
    (own.mkdir("sub") / "mine.json").write_text(case)
    test = TWO_CASES.replace('scenario("calm")', '"*.json"')
    (own.path / "sub" / "test_mine.py").write_text(test)
    own.runpytest("--subject", "batched", "--tp", "1").assert_outcomes(passed=1)


def test_a_gpu_that_is_not_there_ends_the_session_in_one_line(
    own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "why_none", lambda: "this machine has no GPU (none)")
    own.makepyfile(TWO_CASES)

    run = own.runpytest("--device", "cuda")

    assert run.ret == 3
    run.stderr.fnmatch_lines(["*testbed: this machine has no GPU (none); *"])


def test_topologies_with_more_ranks_than_gpus_are_skipped_over_nccl(
    own: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "check_usable", lambda: 2)
    own.makepyfile(TWO_CASES)

    run = own.runpytest("-rs", "--backend", "nccl", "--world", "4")

    run.assert_outcomes(passed=2, skipped=4)
    run.stdout.fnmatch_lines(["*NCCL needs a GPU per rank: pp2tp2 has 4 ranks, this machine 2: *"])


OWN_ASSERTION = """
from tests.fake_fleet import scenario

def test_its_own(check, run_case):
    for name in ("a", "b", "c"):
        run_case(scenario(name))
    result = check(scenario("calm"))
    assert result.verdict.ops["max_stall"] == 77

def test_before_any_run(check):
    assert False
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_an_assertion_of_the_tests_own_shows_its_runs_and_how_to_replay_them(
    own: pytest.Pytester, workers: list[str]
) -> None:
    own.makepyfile(OWN_ASSERTION)

    run = own.runpytest(*workers)

    run.assert_outcomes(failed=2)
    run.stdout.fnmatch_lines(
        [
            "*77*",
            "*- testbed runs of this test -*",
            "1 earlier runs, then:",
            "b-batched-pp2tp2: ok, kept in reports/out/*/runs/b-batched-pp2tp2",
            "* -m testbed replay reports/out/*/runs/b-batched-pp2tp2",
            "c-batched-pp2tp2: ok, kept in *",
            "* -m testbed replay reports/out/*/runs/c-batched-pp2tp2",
            "calm-batched-pp2tp2: ok, kept in reports/out/*/runs/calm-batched-pp2tp2",
            "* -m testbed replay reports/out/*/runs/calm-batched-pp2tp2",
        ],
        consecutive=False,
    )
    assert run.stdout.str().count("testbed runs of this test") == 1
    junit = own.path / "reports/out/latest/junit.xml"
    failures = [failure.text or "" for failure in ElementTree.parse(junit).iter("failure")]
    assert [" -m testbed replay reports/out/" in text for text in failures] == [True, False]
