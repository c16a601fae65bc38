"""Runs: what is kept where, and when a run is as expected."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from testbed.model import record
from testbed.model.errors import BadInput
from testbed.model.record import RunRecord
from testbed.model.scenario import Expect
from testbed.model.verdict import Outcome, Verdict
from testbed.sessions import result
from testbed.sessions import store as kept
from testbed.sessions.execute import execute
from testbed.sessions.finding import find_run, find_runs, taken_from
from testbed.sessions.result import difference
from testbed.sessions.store import RunStore, in_use, prune
from tests.fake_fleet import FakeFleet, scenario

VIOLATION = Verdict(Outcome.VIOLATION, "differs", oracle="agreement", step=1, ranks=(2, 3))


def test_record_and_verdict_lie_in_a_folder_named_after_the_case(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    result = execute(FakeFleet(), scenario(), store)
    assert result.path == store.folder / "runs" / "null-batched-pp2tp2"
    assert record.load(result.path).scenario == scenario()
    verdict = msgspec.json.decode((result.path / kept.VERDICT_FILE).read_bytes())
    assert verdict["verdict"] == "ok"


def test_the_record_is_on_disk_before_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def judge(_: RunRecord) -> Verdict:
        seen.append([file.name for file in tmp_path.glob("latest/runs/*/*")])
        return VIOLATION

    monkeypatch.setattr(result, "judge", judge)
    execute(FakeFleet(), scenario(), RunStore(tmp_path))
    assert seen == [[record.RECORD_FILE]]


def test_the_same_case_again_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    names = [store.claim("a/b case").name for _ in range(3)]
    assert names == ["a_b_case", "a_b_case.2", "a_b_case.3"]


def test_latest_points_at_the_newest_session_that_kept_a_run(tmp_path: Path) -> None:
    first, second, unused = (RunStore(tmp_path) for _ in range(3))
    first.claim("case")
    second.claim("case")
    unused.folder.exists()
    assert (tmp_path / kept.LATEST).resolve() == second.folder


def test_sessions_of_the_same_second_do_not_share_a_folder(tmp_path: Path) -> None:
    assert len({RunStore(tmp_path).folder for _ in range(3)}) == 3


def test_a_session_without_runs_leaves_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.folder.is_dir()
    store.drop_if_empty()
    assert list(tmp_path.iterdir()) == []


def test_only_what_the_expectation_names_is_compared() -> None:
    assert difference(Expect(Outcome.VIOLATION), VIOLATION) == ""
    named = Expect(Outcome.VIOLATION, oracle="agreement", step=1, ranks=[3, 2])
    assert difference(named, VIOLATION) == ""


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (Expect(Outcome.OK), "expected ok, got verdict violation"),
        (
            Expect(Outcome.VIOLATION, oracle="safety"),
            "expected violation by safety, got oracle agreement",
        ),
        (
            Expect(Outcome.VIOLATION, step=2, ranks=[1]),
            "expected violation at step 2 on ranks 1, got step 1, ranks 2,3",
        ),
    ],
)
def test_a_difference_is_told_in_one_line(expected: Expect, says: str) -> None:
    assert difference(expected, VIOLATION) == says


def test_a_run_is_found_by_folder_by_file_and_by_case_id(tmp_path: Path) -> None:
    path = execute(FakeFleet(), scenario(), RunStore(tmp_path)).path
    assert find_run(str(path)) == path
    assert find_run(str(path / record.RECORD_FILE)) == path / record.RECORD_FILE
    found = find_run("null-batched-pp2tp2", tmp_path)
    assert found.resolve() == path


SESSIONS = (("20260101-000000", "ab"), ("20260101-000000.2", "ab"), ("20260202-000000", "b"))


def test_a_case_id_that_the_latest_session_lacks_is_that_of_the_newest_that_has_it(
    tmp_path: Path,
) -> None:
    for name, cases in SESSIONS:
        (tmp_path / name).mkdir()
        for case in cases:
            execute(FakeFleet(), scenario(case), RunStore(tmp_path, name))

    found = find_run("a-batched-pp2tp2", tmp_path)
    newest = find_run("b-batched-pp2tp2", tmp_path)

    assert found.parent.parent.name == "20260101-000000.2"
    assert newest.parent.parent.name == "20260202-000000"
    assert taken_from("a-batched-pp2tp2", found, tmp_path) == (
        f"a-batched-pp2tp2 is not in the latest session, taken from {found.parent.parent}"
    )
    assert taken_from("b-batched-pp2tp2", newest, tmp_path) == ""
    assert taken_from(str(found), found, tmp_path) == ""


def test_a_session_folder_stands_for_all_its_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    paths = [execute(FakeFleet(), scenario(name), store).path for name in ("b", "a")]
    assert find_runs(str(store.folder)) == sorted(paths)


def test_a_run_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere: no recorded run"):
        find_run("nowhere", tmp_path)


def sessions(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def old_sessions(root: Path, *names: str) -> None:
    for name in names:
        (root / name / "runs").mkdir(parents=True)


def test_the_newest_sessions_stay_and_nothing_else_is_touched(tmp_path: Path) -> None:
    old = ["20250101-000000", "20250101-000000.2", "20250101-000000.10", "20250102-000000"]
    old_sessions(tmp_path, *old, "bugs", "20250101-mine")
    prune(tmp_path, 2)
    assert sessions(tmp_path) == ["20250101-000000.10", "20250101-mine", "20250102-000000", "bugs"]


def test_a_session_prunes_as_the_setting_says_and_keeps_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_sessions(tmp_path, "20250101-000000", "20250102-000000")
    monkeypatch.setenv(kept.KEEP_VARIABLE, "1")
    store = RunStore(tmp_path)
    store.claim("case")
    assert sessions(tmp_path) == [store.folder.name]


def test_by_default_twenty_stay_and_all_is_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_sessions(tmp_path, *(f"202501{day:02}-000000" for day in range(1, 31)))
    monkeypatch.setenv(kept.KEEP_VARIABLE, "all")
    RunStore(tmp_path).claim("case")
    assert len(sessions(tmp_path)) == 31
    monkeypatch.delenv(kept.KEEP_VARIABLE)
    RunStore(tmp_path).claim("case")
    assert len(sessions(tmp_path)) == 20


def test_a_session_in_use_is_never_pruned(tmp_path: Path) -> None:
    in_its_work, looked_at = RunStore(tmp_path, "20250101-000000"), tmp_path / "20250102-000000"
    in_its_work.claim("case")
    old_sessions(tmp_path, looked_at.name, "20250103-000000", "20250104-000000")
    with in_use(looked_at / "runs" / "case"):
        prune(tmp_path, 1)
        assert sessions(tmp_path) == ["20250101-000000", "20250102-000000", "20250104-000000"]
    in_its_work.close()
    prune(tmp_path, 1)
    assert sessions(tmp_path) == ["20250104-000000"]


def test_a_session_of_another_process_is_never_pruned(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from testbed.sessions.store import RunStore;"
        "RunStore(Path(sys.argv[1]), '20250101-000000').claim('case');"
        "print('claimed', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(kept.__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        old_sessions(tmp_path, "20250102-000000")
        prune(tmp_path, 1)
        assert sessions(tmp_path) == ["20250101-000000", "20250102-000000"]
        other.stdin.close()
        other.wait()
    prune(tmp_path, 1)
    assert sessions(tmp_path) == ["20250102-000000"]
