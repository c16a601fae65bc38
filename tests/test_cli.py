"""The command line: exit status, one-line errors, what goes to which stream."""

import errno
import sys
from pathlib import Path

import msgspec
import pytest

from reports.results import interpreter
from testbed.cli import doctor
from testbed.cli.command import main
from testbed.model import record
from testbed.model.scenario import Scenario, to_object
from testbed.sessions import catalog
from testbed.subjects import available
from tests import fake_hiradix
from tests.fake_fleet import FakeFleet, scenario
from tests.fake_sglang import FILES, Pip

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, case: Scenario) -> str:
    path = folder / f"{case.name}.json"
    path.write_bytes(msgspec.json.encode(to_object(case)))
    return path.name


def fails_with_one_line(capsys: Capture, *arguments: str) -> str:
    assert main(arguments, FakeFleet) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_run_as_expected_ends_in_0_and_a_table(folder: Path, capsys: Capture) -> None:
    assert main(["run", write(folder, scenario())], FakeFleet) == 0
    out, err = capsys.readouterr()
    assert "null" in out
    assert "1 run, 1 as expected: 1 ok; kept in reports/out/" in out
    assert err == ""


def test_a_run_not_as_expected_ends_in_1_and_tells_how_to_replay_it(
    folder: Path, capsys: Capture
) -> None:
    assert main(["run", write(folder, scenario("crash"))], FakeFleet) == 1
    out, _ = capsys.readouterr()
    assert "\n\ncrash at step 0, rank 1, before any operation, expected ok: " in out
    session = (folder / "reports/out/latest").resolve().name
    path = f"reports/out/{session}/runs/crash-batched-pp2tp2"
    assert out.endswith(f"\n\n{interpreter()} -m testbed replay {path}\n")


def test_a_lost_fleet_ends_in_3_and_still_tells_what_ran(folder: Path, capsys: Capture) -> None:
    files = [write(folder, scenario()), write(folder, scenario("environment"))]
    assert main(["run", *files], FakeFleet) == 3
    out, err = capsys.readouterr()
    assert "1 run, 1 as expected" in out
    assert err == "testbed: host 0 is gone\n"


def test_json_on_standard_output_stands_alone(folder: Path, capsys: Capture) -> None:
    assert main(["run", write(folder, scenario()), "--json", "-"], FakeFleet) == 0
    out, err = capsys.readouterr()
    runs = msgspec.json.decode(out)["runs"]
    assert [run["verdict"] for run in runs] == ["ok"]
    assert "1 run, 1 as expected" in err


def test_subject_and_sizes_replace_the_scenarios_own(folder: Path) -> None:
    fleets: list[FakeFleet] = []

    def make_fleet(world: int, *, oversubscribe: bool = False, port: int = 0) -> FakeFleet:
        fleets.append(FakeFleet(world, oversubscribe=oversubscribe, port=port))
        return fleets[0]

    options = ["--subject", "fused", "--pp", "4", "--tp", "1", "--world", "8", "--oversubscribe"]
    assert main(["run", write(folder, scenario()), *options], make_fleet) == 0
    (fleet,) = fleets
    assert (fleet.world, fleet.oversubscribe, fleet.closed) == (8, True, True)
    assert [case.case_id for case in fleet.ran] == ["null-fused-pp4tp1"]


def test_a_topology_larger_than_the_world_is_bad_input(folder: Path, capsys: Capture) -> None:
    said = fails_with_one_line(capsys, "run", write(folder, scenario(topology="pp8tp8")))
    assert said == (
        "testbed: null.json: topology pp8tp8 needs 64 ranks, the fleet has 4: "
        "raise --world or pass --oversubscribe\n"
    )


def test_an_unknown_subject_is_bad_input(folder: Path, capsys: Capture) -> None:
    name = write(folder, scenario())
    assert "nonesuch" in fails_with_one_line(capsys, "run", name, "--subject", "nonesuch")


def test_an_unknown_fault_is_bad_input(folder: Path, capsys: Capture) -> None:
    name = write(folder, scenario(faults=[{"kind": "gremlin", "on": "all"}]))
    assert "gremlin" in fails_with_one_line(capsys, "run", name)


def test_an_unknown_key_is_bad_input(folder: Path, capsys: Capture) -> None:
    name = write(folder, scenario())
    data = msgspec.json.decode((folder / name).read_bytes())
    (folder / name).write_bytes(msgspec.json.encode({**data, "sizzle": 1}))
    assert "sizzle" in fails_with_one_line(capsys, "run", name)


def test_an_unknown_scenario_is_bad_input(folder: Path, capsys: Capture) -> None:
    assert "nowhere: no such scenario" in fails_with_one_line(capsys, "run", "nowhere")


@pytest.mark.parametrize("arguments", [["juggle"], ["run"], ["run", "x", "--world", "four"]])
def test_a_wrong_command_line_is_one_line_and_2(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments, FakeFleet)
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_runs_before_everything_is_checked(folder: Path, capsys: Capture) -> None:
    good, bad = write(folder, scenario()), write(folder, scenario("big", topology="pp4tp4"))
    fails_with_one_line(capsys, "run", good, bad)
    assert not (folder / "reports").exists()


def test_replay_runs_the_recorded_scenario_on_a_fleet_that_holds_it(
    folder: Path, capsys: Capture
) -> None:
    wide = write(folder, scenario("wide", topology="pp4tp2"))
    assert main(["run", wide, "--oversubscribe"], FakeFleet) == 0
    capsys.readouterr()
    assert main(["replay", "wide-batched-pp4tp2"], FakeFleet) == 0
    assert "wide" in capsys.readouterr().out
    assert len(list(folder.glob("reports/out/*/runs/wide-batched-pp4tp2"))) == 3  # with latest/


def test_recheck_judges_a_whole_session_without_running(folder: Path, capsys: Capture) -> None:
    main(["run", write(folder, scenario()), write(folder, scenario("crash"))], FakeFleet)
    capsys.readouterr()
    assert main(["recheck", "reports/out/latest"], _no_fleet) == 1
    assert "2 runs, 1 as expected: 1 ok, 1 crash" in capsys.readouterr().out


def test_explain_tells_the_story_of_a_recorded_run(folder: Path, capsys: Capture) -> None:
    main(["run", write(folder, scenario("crash"))], FakeFleet)
    capsys.readouterr()
    assert main(["explain", "crash-batched-pp2tp2"], _no_fleet) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("crash at step 0, not as expected")
    assert out.splitlines()[-1].startswith("replay it: ")


def test_diff_of_a_run_with_itself_is_0_and_with_another_1(folder: Path, capsys: Capture) -> None:
    main(["run", write(folder, scenario()), write(folder, scenario("crash"))], FakeFleet)
    capsys.readouterr()
    assert main(["diff", "null-batched-pp2tp2", "null-batched-pp2tp2"], _no_fleet) == 0
    assert "every rank did the same" in capsys.readouterr().out
    assert main(["diff", "null-batched-pp2tp2", "crash-batched-pp2tp2"], _no_fleet) == 1
    out, _ = capsys.readouterr()
    assert "first difference: step 0, rank 1, event 1" in out
    assert "  B: nothing more" in out
    assert "verdict of B: crash at step 0: rank 1 died by SIGKILL" in out


def test_diff_of_no_run_is_bad_input(folder: Path, capsys: Capture) -> None:
    assert "nowhere: no recorded run" in fails_with_one_line(capsys, "diff", "nowhere", "there")


def test_a_wrong_number_of_sessions_to_keep_is_refused_before_anything_runs(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_KEEP", "few")
    said = fails_with_one_line(capsys, "run", write(folder, scenario()))
    assert said == "testbed: TESTBED_KEEP is 'few': give a whole number from 1 on, or all\n"


def test_a_replay_does_not_prune_the_run_it_replays(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_KEEP", "1")
    assert main(["run", write(folder, scenario())], FakeFleet) == 0
    session = (folder / "reports/out/latest").resolve()
    assert main(["replay", f"{session}/runs/null-batched-pp2tp2"], FakeFleet) == 0
    assert session.is_dir()
    assert main(["run", write(folder, scenario())], FakeFleet) == 0
    assert not session.exists()


@pytest.mark.parametrize("command", ["explain", "recheck", "diff", "replay"])
def test_a_case_of_an_earlier_session_is_found_and_the_session_named(
    folder: Path, capsys: Capture, command: str
) -> None:
    main(["run", write(folder, scenario("calm"))], FakeFleet)
    earlier = (folder / "reports/out/latest").resolve().name
    main(["run", write(folder, scenario("still"))], FakeFleet)
    capsys.readouterr()
    named = ["calm-batched-pp2tp2"] * (1 + (command == "diff"))

    assert main([command, *named], FakeFleet) == 0

    told = (
        "testbed: calm-batched-pp2tp2 is not in the latest session, "
        f"taken from reports/out/{earlier}\n"
    )
    assert capsys.readouterr().err == told * len(named)
    main(["run", write(folder, scenario("calm"))], FakeFleet)
    capsys.readouterr()
    main([command, *named], FakeFleet)
    assert capsys.readouterr().err == ""


def test_explain_of_no_run_is_bad_input(folder: Path, capsys: Capture) -> None:
    assert "nowhere: no recorded run" in fails_with_one_line(capsys, "explain", "nowhere")


def _no_fleet(world: int, *, oversubscribe: bool = False, port: int = 0) -> FakeFleet:
    raise AssertionError("a fleet was started")


def test_list_names_every_kind(capsys: Capture) -> None:
    assert main(["list"], _no_fleet) == 0
    out, _ = capsys.readouterr()
    assert [line for line in out.split("\n") if line.endswith(":")] == [
        "scenarios:",
        "subjects:",
        "faults:",
        "oracles:",
    ]
    assert "  no-controller" in out
    assert "  agreement" in out


def test_list_as_json_has_names(capsys: Capture) -> None:
    assert main(["list", "subjects", "--json", "-"], _no_fleet) == 0
    listed = msgspec.json.decode(capsys.readouterr().out)["subjects"]
    assert [entry["name"] for entry in listed] == list(available())


def test_every_built_in_scenario_can_be_listed_and_loaded(capsys: Capture) -> None:
    assert main(["list", "scenarios"], _no_fleet) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(catalog.builtin_files())


def test_a_bad_check_of_the_doctors_ends_in_3(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    checks = [doctor.Check("ok", "torch", "2.13.0"), doctor.Check("bad", "gloo", "none")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(checks))
    assert main(["doctor"], _no_fleet) == 3
    assert capsys.readouterr().out == "ok    torch          2.13.0\nbad   gloo           none\n"


def test_the_real_command_line_finds_this_machine_fit(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(catalog.BUILTIN.parents[1]))
    run = pytester.run(sys.executable, "-m", "testbed", "doctor")
    assert run.ret == 0
    names = [line[6:20].strip() for line in run.outlines]
    assert names == [
        "torch",
        "torchrun",
        "gloo",
        "fork",
        "shared memory",
        "cores",
        "GPUs",
        "namespaces",
    ]


def test_a_full_disk_ends_in_3_with_one_line_and_the_results_on_the_terminal(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record, "save", full)
    assert main(["run", write(folder, scenario())], FakeFleet) == 3
    out, err = capsys.readouterr()
    assert "1 run, 1 as expected: 1 ok" in out
    assert err == "testbed: null-batched-pp2tp2 cannot be kept: No space left on device\n"


def test_a_summary_that_cannot_be_kept_ends_in_3_and_is_on_the_terminal(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.session.SUMMARY_FILE", "runs")  # a folder is there already
    assert main(["run", write(folder, scenario())], FakeFleet) == 3
    out, err = capsys.readouterr()
    assert "1 run, 1 as expected: 1 ok" in out
    assert err.startswith("testbed: the summary cannot be kept: ")
    assert err.count("\n") == 1


def test_releases_are_fetched_one_line_each(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pip().install(monkeypatch, folder)
    for path, text in fake_hiradix.files().items():
        monkeypatch.setitem(FILES, f"sglang/srt/{path}", text)

    assert main(["subjects", "fetch", "sglang==9.8.7"], FakeFleet) == 0
    out, err = capsys.readouterr()

    where = folder / "hicache-testbed" / "sglang-9.8.7"
    assert out == f"sglang==9.8.7: 0.0 MB in {where}, hashes ok\n"
    assert err.startswith("fetch: 1/1 releases")  # progress, apart from what is printed
    assert main(["list", "subjects"], FakeFleet) == 0
    listed, _ = capsys.readouterr()
    assert f"0.0 MB in {where}, hashes ok" in listed
    assert "sglang==0.5.19" in listed
    assert "not fetched yet" in listed


def test_a_release_that_cannot_be_lifted_is_bad_input_wherever_it_is_named(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pip().install(monkeypatch, folder)
    case = write(folder, scenario())

    for arguments in (
        ("run", case, "--subject", "sglang==9.8.7"),
        ("subjects", "fetch", "sglang==9.8.7"),
        ("matrix", "--subjects", "batched,sglang==9.8.7", "--scenarios", case),
        ("compare", "batched", "sglang==9.8.7", "--scenarios", case),
    ):
        assert main(arguments, FakeFleet) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "sglang==9.8.7 cannot be lifted, choose another: " in err.split("\n")[-2]
    assert main(["list", "subjects"], FakeFleet) == 0
    assert "9.8.7" not in capsys.readouterr().out


def test_only_releases_are_fetched_and_nothing_before_all_names_are_read(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip()
    pip.install(monkeypatch, folder)

    told = fails_with_one_line(capsys, "subjects", "fetch", "sglang==9.8.7", "batched")

    assert "subject 'batched' is no release" in told
    assert pip.calls == 0
