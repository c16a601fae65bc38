"""Reports: the table, the JSON and the failure report of made-up results."""

import io
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from reports import outputs, page
from reports.colour import takes_colour
from reports.failure import headline, report
from reports.ranks import ranged
from reports.results import Row, document, interpreter, operation, row, write_json
from reports.session import keep
from reports.table import as_markdown, for_terminal, tally
from testbed.model.errors import BadInput
from testbed.model.events import Complete
from testbed.model.scenario import Expect
from testbed.model.verdict import Divergence, Outcome, Verdict
from testbed.sessions.result import LOST, RunResult, difference, judged
from tests.fake_fleet import clean, killed, scenario
from tests.record_builder import load, without, write
from tests.recorded import deadlock, in_session, modelled

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


def test_the_report_begins_and_ends_with_the_command_that_runs_the_case_again() -> None:
    lines = report(result_row(VIOLATION)).split("\n")
    assert lines[0] == lines[-1] == f"{interpreter()} -m testbed replay 'runs/x y'"


def test_the_command_of_a_run_that_could_not_be_kept_runs_its_scenario() -> None:
    case = scenario("calm", topology="pp2tp1cp2", subject="fused")
    lost = RunResult(case, clean(case), VIOLATION, Path(LOST), Expect(Outcome.OK), "x")
    command = f"{interpreter()} -m testbed run calm --subject=fused --pp=2 --tp=1 --cp=2"
    assert row(lost)["replay"] == command


def test_the_report_tells_the_divergence_first() -> None:
    lines = report(result_row(VIOLATION, Expect(Outcome.OK, why="both are ready"))).split("\n")
    assert lines[2] == (
        "violation by agreement at step 1, rank 2, before any operation, expected ok:"
        " rank 2 did not complete w0"
    )
    assert [" ".join(line.split()) for line in lines[5:11]] == [
        "diverged step 1, write #0",
        "rank 2: completed nothing",
        "ranks 0,1: completed w0",
        "look at rank 2; the protocol went as on ranks 0, 1",
        "expected ok: both are ready",
        "also rank 3 was stuck behind",
    ]


def test_the_headline_names_the_operation_and_group_at_which_ranks_came_apart() -> None:
    assert operation(deadlock()) == "all_reduce #0 of world"
    late = without(modelled(transfers=[write("w0")]), 2, lambda event: isinstance(event, Complete))
    made = row(judged(late, Path("runs/late")))
    assert made["operation"] == "after recv #1 of pp[tp0]"
    assert headline(made).startswith(
        "violation by agreement at step 1, rank 2, after recv #1 of pp[tp0], expected ok: "
    )
    assert operation(judged(modelled(), Path("runs/sound"))) == ""


def test_many_ranks_are_told_in_ranges() -> None:
    assert ranged([2]) == "rank 2"
    assert ranged([9, 0, 1, 2, 3]) == "ranks 0-3, 9"


def test_output_of_ranks_is_in_the_report_before_its_last_line() -> None:
    told = report(result_row(VIOLATION), {2: "one\ntwo"}).split("\n")
    assert told[-5:-2] == ["  output of rank 2:", "    one", "    two"]


@pytest.mark.parametrize(
    ("which", "ranks"), [("first", [1]), ("failed", [1, 2]), ("all", [0, 1, 2])]
)
def test_whose_output_is_shown_can_be_chosen(which: outputs.Chosen, ranks: list[int]) -> None:
    made = killed(scenario(), 1)
    shares = [replace(share, output=f"I am {share.rank}\n") for share in made.ranks[:3]]
    shares[2] = replace(shares[2], exit="raised")
    silent = replace(made.ranks[3], output="")
    made = replace(made, ranks=(*shares, silent))
    verdict = Verdict(Outcome.CRASH, "rank 1 died", step=0, ranks=(1,))
    result = RunResult(made.scenario, made, verdict, Path("x"), Expect(Outcome.OK), "x")
    assert outputs.outputs(result, which) == {rank: f"I am {rank}" for rank in ranks}


def test_of_much_output_the_end_is_shown_and_the_rest_counted() -> None:
    made = killed(scenario(), 1)
    shares = [replace(share, output="\n".join(map(str, range(100)))) for share in made.ranks]
    made = replace(made, ranks=tuple(shares))
    result = judged(made, Path("x"))
    lines = outputs.outputs(result, "first")[1].split("\n")
    assert (lines[0], lines[1], lines[-1], len(lines)) == ("... 60 lines before", "60", "99", 41)


def test_colour_is_for_terminals_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert takes_colour(Terminal())
    assert not takes_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not takes_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not takes_colour(Terminal())


def test_a_coloured_table_is_the_plain_one_with_colours_in_it() -> None:
    rows = [result_row(VIOLATION), result_row(Verdict(Outcome.OK, ""))]
    coloured = for_terminal(rows, 130, colour=True)
    assert "\x1b[31m✗ violation: agreement (expected ok)\x1b[0m" in coloured
    assert "\x1b[32mok\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == for_terminal(rows, 130)


def test_a_session_on_disk_has_everything_and_a_page(tmp_path: Path) -> None:
    rows = in_session(tmp_path, [modelled(name="one"), deadlock().record])
    keep(rows, 4, tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["index.html", "junit.xml", "results.json", "runs", "summary.md"]
    assert len(list(tmp_path.glob("runs/*/trace.json.gz"))) == 2


def test_a_thousand_cases_are_kept_in_less_than_fifty_megabytes(tmp_path: Path) -> None:
    transfers = [write("w0"), write("w1", ready=3), load("l0", at=1)]
    records = [
        deadlock().record,
        modelled("pp2tp2", transfers, name="four", steps=8, storage=True),
        modelled("pp4tp2", transfers, name="eight", steps=24, storage=True),
    ]
    keep(in_session(tmp_path, records), 4, tmp_path)
    # On disk every file takes whole blocks. What does not grow with the cases counts as if it did.
    taken = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
    assert taken / len(records) * 1000 < 50e6


def test_a_run_that_was_lost_is_on_the_page_without_a_timeline(tmp_path: Path) -> None:
    case = scenario("calm")
    lost = RunResult(case, clean(case), VIOLATION, Path(LOST), Expect(Outcome.OK), "x")
    written = page.write_page([row(lost)], 4, tmp_path).read_text()
    assert "#case=calm-batched-pp2tp2-lost" in written
    assert 'data-key="calm-batched-pp2tp2-lost"></script>' in written


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


def test_a_run_in_which_nothing_was_recorded_is_not_plainly_ok(tmp_path: Path) -> None:
    idle, busy = in_session(tmp_path, [modelled("pp1tp1", name="idle"), modelled(name="busy")])

    assert "ok (nothing recorded)" in as_markdown([idle])
    assert "nothing recorded" not in as_markdown([busy])
    assert tally([idle, busy]) == "2 runs, 2 as expected: 1 ok (nothing recorded), 1 ok"
