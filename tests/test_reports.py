"""Reports: the table, the JSON and the failure report of made-up results."""

from pathlib import Path

import msgspec
import pytest

from reports.failure import headline, report
from reports.results import Row, document, interpreter, row, write_json
from reports.table import as_markdown, for_terminal, tally
from testbed.errors import BadInput
from testbed.runs import RunResult, difference
from testbed.scenario import Expect
from testbed.verdict import Divergence, Outcome, Verdict
from tests.fake_fleet import clean, scenario

DIVERGENCE = Divergence(
    step=1,
    channel="write",
    ordinal=0,
    did={"0": "completed w0", "1": "completed w0", "2": "completed nothing"},
    majority=(0, 1),
    minority=(2,),
)
VIOLATION = Verdict(
    Outcome.VIOLATION,
    "rank 2 did not complete w0",
    oracle="agreement",
    step=1,
    ranks=(2,),
    first_divergence=DIVERGENCE,
    notes=("rank 3 was stuck behind",),
    ops={"sync_per_step": 2.5},
)


def result_row(verdict: Verdict, expected: Expect | None = None) -> Row:
    case = scenario("case|x")
    wanted = expected or Expect(Outcome.OK)
    why_not = difference(wanted, verdict)
    return row(RunResult(case, clean(case), verdict, Path("runs/x y"), wanted, why_not))


def test_a_row_has_the_keys_scripts_rely_on() -> None:
    made = result_row(VIOLATION)
    assert made["scenario"] == "case|x"
    assert made["subject"] == "batched"
    assert made["topology"] == "pp2tp2"
    assert (made["verdict"], made["oracle"], made["step"]) == ("violation", "agreement", 1)
    assert made["ranks"] == [2]
    assert made["first_divergence"]["minority"] == [2]  # type: ignore[index]
    assert (made["expected"], made["as_expected"]) == ("ok", False)
    assert (made["wall_ms"], made["ops"]) == (12.3, {"sync_per_step": 2.5})


def test_the_report_tells_the_divergence_first_and_the_replay_command_last() -> None:
    lines = report(result_row(VIOLATION, Expect(Outcome.OK, why="both are ready"))).split("\n")
    assert lines[0] == ("violation by agreement at step 1, expected ok: rank 2 did not complete w0")
    assert [" ".join(line.split()) for line in lines[3:9]] == [
        "diverged step 1, write #0",
        "rank 2: completed nothing",
        "ranks 0,1: completed w0",
        "look at rank 2; the protocol went as on ranks 0, 1",
        "expected ok: both are ready",
        "also rank 3 was stuck behind",
    ]
    assert lines[-1] == f"replay it: {interpreter()} -m testbed replay 'runs/x y'"


def test_a_failure_of_the_testbed_is_called_one() -> None:
    broken = Verdict(Outcome.ERROR, "oracle safety raised KeyError: 3")
    assert headline(result_row(broken)).startswith("error of the testbed, expected ok: oracle")


def test_the_table_has_one_line_per_run_within_the_width() -> None:
    text = for_terminal([result_row(VIOLATION), result_row(Verdict(Outcome.OK, ""))], 130)
    lines = text.split("\n")
    assert len(lines) == 4
    assert max(map(len, lines)) <= 130
    assert "✗ violation: agreement (expected ok)" in lines[2]
    assert "step 1, write" in lines[2]
    assert lines[2].split()[-3:] == ["2", "2.5", "12"]


def test_markdown_keeps_all_of_the_divergence_and_escapes_bars() -> None:
    text = as_markdown([result_row(VIOLATION)])
    assert DIVERGENCE.one_line() in text
    assert "case\\|x" in text


def test_the_tally_counts_verdicts() -> None:
    expected = Expect(Outcome.VIOLATION)
    ok = result_row(Verdict(Outcome.OK, ""))
    rows = [ok, ok, result_row(VIOLATION, expected)]
    assert tally(rows) == "3 runs, 3 as expected: 2 ok, 1 violation"


def test_the_document_counts_what_was_not_as_expected(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    write_json(document([result_row(VIOLATION)], 4, "reports/out/x"), str(out))
    data = msgspec.json.decode(out.read_bytes())
    assert (data["world"], data["as_expected"], data["not_as_expected"]) == (4, 0, 1)
    assert data["runs"][0]["scenario"] == "case|x"


def test_a_file_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        write_json({}, str(tmp_path / "absent" / "out.json"))
