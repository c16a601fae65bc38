"""The summary of a job on GitHub."""

from pathlib import Path

import pytest

from reports.github import LIMIT_BYTES, VARIABLE, append_summary, summary
from testbed.model.verdict import Outcome, Verdict
from tests.test_reports import VIOLATION, result_row

OK = Verdict(Outcome.OK, "")


def test_without_the_variable_nothing_is_written(tmp_path: Path) -> None:
    append_summary([result_row(OK)])
    assert list(tmp_path.iterdir()) == []


def test_it_is_appended_failures_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary"
    file.write_text("what another command wrote\n")
    monkeypatch.setenv(VARIABLE, str(file))
    append_summary([result_row(OK), result_row(VIOLATION)])
    text = file.read_text()
    assert text.startswith("what another command wrote\n\n## Testbed\n\n2 runs, 1 as expected")
    assert text.index("<details>") < text.index("| scenario")
    assert "violation by agreement at step 1, rank 2" in text
    assert text.count("\n| case") == 2


def test_it_stays_under_the_limit_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "summary"
    file.write_text("é" * 100_000)
    monkeypatch.setenv(VARIABLE, str(file))
    append_summary([result_row(VIOLATION)] * 2000)
    size = file.stat().st_size
    assert LIMIT_BYTES - 10_000 < size < LIMIT_BYTES
    assert "more parts did not fit" in file.read_text()
    append_summary([result_row(VIOLATION)] * 2000)
    assert file.stat().st_size < LIMIT_BYTES


def test_where_there_is_no_room_at_all_nothing_is_written() -> None:
    assert summary([result_row(VIOLATION)], 100) == ""


def test_what_a_run_said_cannot_end_its_block() -> None:
    fenced = Verdict(Outcome.CRASH, "````\n</details><script>", step=0, ranks=(1,))
    text = summary([result_row(fenced)], LIMIT_BYTES)
    assert [line for line in text.split("\n") if line.startswith("````")] == ["````"] * 2
    assert "<summary><b>case|x-batched-pp2tp2</b>: crash at step 0, rank 1" in text
    assert "&lt;script&gt;</summary>" in text
