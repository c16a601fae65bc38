"""The matrix: cells as data, a table and a page; the command, over a fleet without processes."""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from reports import matrix_page
from reports.matrix import Line, Matrix, Unfit, document, legend, load, mark
from reports.matrix_table import errors, for_terminal, heading, tally
from reports.results import Row, load_document, row
from testbed import subjects
from testbed.cli.command import main
from testbed.matrix import pins as pinned
from testbed.matrix import run as matrix
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.record import RunRecord
from testbed.model.scenario import Expect, Scenario, to_object
from testbed.model.verdict import Divergence, Outcome, Verdict
from testbed.sessions import catalog
from testbed.sessions.result import RunResult, difference
from testbed.subjects.sglang import Unliftable
from tests.fake_fleet import FakeFleet, clean, scenario

Capture = pytest.CaptureFixture[str]

AGREEMENT = Verdict(
    Outcome.VIOLATION,
    "rank 2 has <no> ACK of w0",
    oracle="agreement",
    step=1,
    ranks=(2,),
    first_divergence=Divergence(
        1, "write", 0, {"2": "nothing", "0": "w0", "1": "w0"}, (0, 1), (2,)
    ),
)
DEADLOCK = Verdict(Outcome.DEADLOCK, "rank 2 waits for rank 0", step=0, ranks=(2,))
OK = Verdict(Outcome.OK, "every oracle holds")


def cell(verdict: Verdict, name: str = "skew", subject: str = "batched") -> Row:
    case = scenario(name, subject=subject)
    wanted = Expect(Outcome.VIOLATION)
    return row(
        RunResult(case, clean(case), verdict, Path("x"), wanted, difference(wanted, verdict))
    )


def made(*cells: Row) -> Matrix:
    names = dict.fromkeys(each["scenario"] for each in cells)
    return Matrix(
        world=4,
        out="reports/out/x",
        subjects=list(dict.fromkeys(each["subject"] for each in cells)),
        scenarios=[Line(name, "pp2tp2", "#26921, o/r#7", "why <it>") for name in names],
        cells=list(cells),
    )


def test_a_mark_is_the_verdict_its_step_and_the_oracle_of_a_violation() -> None:
    degraded = Verdict(Outcome.DEGRADED, "held back", oracle="progress", step=12)
    verdicts = [OK, AGREEMENT, DEADLOCK, degraded, Verdict(Outcome.ERROR, "no shared memory")]
    assert [mark(cell(verdict)) for verdict in verdicts] == ["✓", "V1 agr", "D0", "~12", "E"]


def test_a_cell_is_sound_by_its_verdict_whatever_the_scenario_expects() -> None:
    unexpected = cell(OK)  # the scenario expects a violation
    assert (unexpected["as_expected"], mark(unexpected)) == (False, "✓")


def test_the_legend_tells_the_marks_that_are_there_and_no_other() -> None:
    told = legend(made(cell(OK), cell(AGREEMENT)))
    assert told == (
        "✓ ok, whatever the scenario expects; V violation, of which oracle; "
        "the number is the step; agr agreement"
    )


def test_the_table_has_a_line_a_scenario_and_a_column_a_subject() -> None:
    table = for_terminal(
        made(
            cell(OK, subject="sglang==0.5.12.post1"),
            cell(AGREEMENT, subject="batched"),
            cell(DEADLOCK, "empty", "sglang==0.5.12.post1"),
        ),
        160,
    )
    assert [line.split() for line in table.split("\n")[:2]] == [
        ["scenario", "0.5.12", "batched"],
        [".post1"],
    ]
    assert [re.split(r" {2,}", line.strip()) for line in table.split("\n")[3:6]] == [
        ["skew", "✓", "V1 agr"],
        ["empty", "D0"],
        ["✓", "1/2", "0/1"],
    ]


def test_a_table_wider_than_the_terminal_comes_in_parts_that_fit() -> None:
    wide = made(*(cell(OK, "a-long-name", f"sglang==0.5.{n}") for n in range(10, 24)))
    lines = for_terminal(wide, 60).split("\n\n")
    assert all(len(line) <= 60 for part in lines[:-1] for line in part.split("\n"))
    # 13 columns for the names, 10 for each of four releases; a fifth would be too many.
    firsts = [part.split("\n")[0].split()[1] for part in lines[:-1]]
    assert firsts == ["0.5.10", "0.5.14", "0.5.18", "0.5.22"]


def test_a_heading_is_short_where_the_subject_is_a_release() -> None:
    named = ["sglang==0.5.15.post1:hiradix", "sglang@/a/b:hiradix", "my.module:Class"]
    assert [heading(name) for name in named] == ["0.5.15\n.post1\n:hiradix", named[1], named[2]]


def test_reasons_of_cells_that_could_not_be_filled_are_told_once_each() -> None:
    error = Verdict(Outcome.ERROR, "index cannot be reached")
    cells = [cell(error, name, "sglang==1.0") for name in ("a", "b")]
    cells += [cell(OK), cell(Verdict(Outcome.ERROR, "oracle safety raised"), "c")]
    assert errors(cells) == [
        "E batched, c: oracle safety raised",
        "E sglang==1.0, 2 scenarios: index cannot be reached",
    ]
    assert tally(cells) == "4 cells: 3 error, 1 ok"


def test_the_json_file_is_read_back_whole(tmp_path: Path) -> None:
    file = tmp_path / "matrix.json"
    before = made(cell(OK), cell(AGREEMENT, "empty"))
    file.write_bytes(msgspec.json.encode(document(before)))
    assert load(file) == before
    assert [each["mark"] for each in document(before)["cells"]] == ["✓", "V1 agr"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is no matrix"),
        ("[]", "is no matrix: give a file that"),
        ('{"format": 1, "runs": []}', "is no matrix: give a file that"),
        ('{"format": 2, "cells": []}', "matrix format 2, this testbed reads 1"),
        ('{"format": 1, "cells": [], "world": 4}', "is no matrix"),
    ],
)
def test_what_is_no_matrix_is_bad_input(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=said):
        load(file)


def test_an_absent_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        load(tmp_path / "absent.json")


def test_the_page_tells_each_cell_that_is_not_ok_and_needs_nothing_else() -> None:
    page = matrix_page.as_html(made(cell(OK), cell(AGREEMENT, "empty", "sglang==0.5.19")))
    anchor = "empty-sglang__0.5.19-pp2tp2"
    assert f'href="#{anchor}"' in page
    assert f'<section id="{anchor}">' in page
    assert page.count("<section") == 1
    assert "rank 2 has &lt;no&gt; ACK of w0" in page
    assert "<li>step 1, write #0</li><li>rank 2: nothing</li><li>ranks 0,1: w0</li>" in page
    assert "-m testbed replay" in page
    assert "why &lt;it&gt;" in page
    assert "<script" not in page
    assert set(re.findall(r'(?:src|href)="([^#][^"]*)"', page)) == {
        "https://github.com/sgl-project/sglang/issues/26921",
        "https://github.com/o/r/issues/7",
    }


def test_the_scenarios_of_a_matrix_name_their_reports() -> None:
    published = matrix.published()
    assert {"empty-follower-write", "claim-one-agreement"} <= {one.name for one in published}
    for one in published:
        assert re.fullmatch(r"([\w.-]+/[\w.-]+)?#\d+(, .*)?", one.report), one.name


def told_in(page: str) -> dict[str, str]:
    """Scenario -> verdict, from the rows of the page's tables."""
    rows = [line.split("|") for line in page.split("\n") if line.startswith("| `")]
    return {name: row[2].strip() for row in rows for name in row[1].split("`")[1::2]}


def test_the_page_of_findings_tells_every_pinned_cell_of_the_newest_release_that_is_not_ok() -> (
    None
):
    root = catalog.BUILTIN.parents[1]
    page = (root / "docs" / "findings.md").read_text(encoding="utf-8")
    newest_release, _, older_ones = page.partition("\n## Not in 0.5.23")
    told = told_in(newest_release)
    published = {one.name for one in matrix.published()}
    assert told.keys() <= published
    assert f": {len(published) - len(told)} of {len(published)} cells are ✓" in newest_release
    assert told_in(older_ones).keys() <= {file.stem for file in catalog.builtin_files()}
    pins = pinned.load(root / "cases" / "matrix" / "pinned.json")
    newest = [pin for pin in pins if pin.subject == "sglang==0.5.23" and pin.verdict != "ok"]
    assert newest
    for pin in newest:
        assert told[pin.scenario].startswith(str(pin.verdict))
        assert told[pin.scenario].endswith(f"step {pin.step}")


def test_a_case_waits_no_longer_than_a_matrix_can_afford() -> None:
    patient, hasty = scenario("patient", deadline_ms=9000), scenario("hasty", deadline_ms=200)
    cases = matrix.cases([patient, hasty], ["fused", "batched"])
    assert [(case.name, case.subject, case.deadline_ms) for case in cases] == [
        ("patient", "fused", matrix.MAX_DEADLINE_MS),
        ("hasty", "fused", 200),
        ("patient", "batched", matrix.MAX_DEADLINE_MS),
        ("hasty", "batched", 200),
    ]


def test_subjects_may_be_globs_over_what_is_listed() -> None:
    names = ["own.module:Class", "fused", "sglang==0.5.12*", "fuse*"]
    assert matrix.named_subjects(names) == [
        "own.module:Class",
        "fused",
        "sglang==0.5.12",
        "sglang==0.5.12.post1",
        "sglang==0.5.12:hiradix",
        "sglang==0.5.12.post1:hiradix",
    ]
    with pytest.raises(BadInput, match="fits none"):
        matrix.named_subjects(["nonesuch*"])


def test_a_pair_that_makes_no_sense_is_no_cell_and_says_why() -> None:
    unfit = Unfit("empty", "batched", "batched has no <flush> to call")
    lacking = msgspec.structs.replace(
        made(cell(OK), cell(OK, "empty", "fused")), subjects=["batched", "fused"], unfit=[unfit]
    )
    lines = [re.split(r" {2,}", line.strip()) for line in for_terminal(lacking, 160).split("\n")]
    assert lines[3:5] == [["empty", "-", "✓"], ["✓", "1/1", "1/1"]]
    assert legend(lacking).endswith("- the subject lacks what the scenario needs")
    assert 'title="batched has no &lt;flush&gt; to call">-</td>' in matrix_page.as_html(lacking)


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, *cases: Scenario) -> str:
    for case in cases:
        (folder / f"{case.name}.json").write_bytes(msgspec.json.encode(to_object(case)))
    return ",".join(f"{case.name}.json" for case in cases)


class Dying(FakeFleet):
    """As its parent, but a case named ``environment*`` costs it a host."""

    def run(self, scenario: Scenario) -> RunRecord:
        if scenario.name.startswith("environment"):
            self.lost = "host 0 is gone"
        return super().run(scenario)


@pytest.fixture
def no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """``sglang==*`` cannot be had."""

    def lacking(real: Callable[[str], None]) -> Callable[[str], None]:
        def check(name: str) -> None:
            if name.startswith("sglang=="):
                raise EnvironmentFault(f"{name} cannot be fetched")
            real(name)

        return check

    for function in ("check", "prepare"):
        monkeypatch.setattr(subjects, function, lacking(getattr(subjects, function)))


def test_every_cell_is_told_as_it_comes_and_all_of_them_in_a_table_json_and_a_page(
    folder: Path, capsys: Capture
) -> None:
    named = write(folder, scenario("calm"), scenario("crash"))
    arguments = ["--scenarios", named, "--json", "m.json", "--html", "m.html"]
    assert main(["matrix", "--subjects", "batched,fused", *arguments], FakeFleet) == 0
    out, err = capsys.readouterr()
    lines = out.split("\n")
    assert [line.split()[:2] for line in lines[:4]] == [
        ["✓", "calm-batched-pp2tp2"],
        ["C0", "crash-batched-pp2tp2"],
        ["✓", "calm-fused-pp2tp2"],
        ["C0", "crash-fused-pp2tp2"],
    ]
    assert [line.split() for line in lines if line.startswith(("scenario", "calm", "crash"))] == [
        ["scenario", "batched", "fused"],
        ["calm", "✓", "✓"],
        ["crash", "C0", "C0"],
    ]
    assert "4 cells: 2 ok, 2 crash; kept in reports/out/" in out
    assert err.startswith("matrix: 4/4 cells")
    assert len(load(folder / "m.json").cells) == 4
    assert "<h3" in (folder / "m.html").read_text(encoding="utf-8")
    latest = folder / "reports/out/latest"
    assert load(latest / "matrix.json") == load(folder / "m.json")
    assert (latest / "matrix.html").read_bytes() == (folder / "m.html").read_bytes()
    # What its scenario expects is written for another subject: no cell is a failure of the session.
    session = load_document(latest / "results.json")
    assert len(session["runs"]) == 4
    assert session["not_as_expected"] == 0


def test_a_subject_that_cannot_be_had_is_a_column_of_errors_and_the_rest_goes_on(
    folder: Path, capsys: Capture, no_release: None
) -> None:
    named = write(folder, scenario("calm"), scenario("still"))
    arguments = ["--subjects", "sglang==9.9,batched", "--scenarios", named]
    assert main(["matrix", *arguments], FakeFleet) == 3
    out, _ = capsys.readouterr()
    assert "E sglang==9.9, 2 scenarios: sglang==9.9 cannot be fetched" in out
    assert [
        line.split()[1:] for line in out.split("\n") if line.startswith(("calm ", "still "))
    ] == [
        ["E", "✓"],
        ["E", "✓"],
    ]


def test_a_cell_that_costs_the_fleet_a_host_is_an_error_and_the_next_finds_another_fleet(
    folder: Path, capsys: Capture
) -> None:
    fleets: list[Dying] = []

    def make_fleet(world: int, *, oversubscribe: bool = False, port: int = 0) -> Dying:
        fleets.append(Dying(world))
        return fleets[-1]

    named = write(folder, scenario("environment"), scenario("calm"))
    assert main(["matrix", "--subjects", "batched", "--scenarios", named], make_fleet) == 3
    out, _ = capsys.readouterr()
    assert "E batched, environment: host 0 is gone" in out
    assert re.search(r"^calm +✓$", out, re.MULTILINE)
    assert [fleet.closed for fleet in fleets] == [True, True]


def test_a_subject_without_what_a_scenario_calls_is_no_failure(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_calls(name: str, _: object) -> None:
        if name == "fused":
            raise BadInput("fused has no flush to call")

    monkeypatch.setattr(subjects, "check_calls", check_calls)
    named = write(folder, scenario("calm"))
    arguments = ["--subjects", "batched,fused", "--scenarios", named, "--json", "m.json"]
    assert main(["matrix", *arguments], FakeFleet) == 0
    out, _ = capsys.readouterr()
    assert re.search(r"^calm +✓ +-$", out, re.MULTILINE)
    assert load(folder / "m.json").unfit == [
        Unfit("calm", "fused", "scenario calm: fused has no flush to call")
    ]


def test_where_no_other_fleet_can_be_started_what_has_run_is_told(
    folder: Path, capsys: Capture
) -> None:
    fleets: list[Dying] = []

    def make_fleet(world: int, *, oversubscribe: bool = False, port: int = 0) -> Dying:
        if fleets:
            raise EnvironmentFault("torchrun ended before its hosts came")
        fleets.append(Dying(world))
        return fleets[-1]

    named = write(folder, scenario("environment"), scenario("calm"))
    assert main(["matrix", "--subjects", "batched", "--scenarios", named], make_fleet) == 3
    out, err = capsys.readouterr()
    assert "1 cell: 1 error" in out
    assert err.endswith("testbed: torchrun ended before its hosts came\n")


def test_by_default_the_cached_releases_that_can_be_lifted_are_the_columns(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(name: str) -> None:
        if name == "fused":
            raise Unliftable("fused: has no such class")

    monkeypatch.setattr(subjects, "cached", lambda: ["separate", "fused", "batched"])
    monkeypatch.setattr(subjects, "prepare", prepare)
    assert main(["matrix", "--scenarios", write(folder, scenario("calm"))], FakeFleet) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^scenario +separate +batched$", out, re.MULTILINE)
    assert "testbed: fused is left out: fused: has no such class\n" in err


def test_a_glob_leaves_out_what_cannot_be_lifted(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(name: str) -> None:
        if name.startswith("f"):
            raise Unliftable("fused: has no such class")

    monkeypatch.setattr(subjects, "prepare", prepare)
    named = ["--scenarios", write(folder, scenario("calm"))]

    assert main(["matrix", "--subjects", "f*,batch*", *named], FakeFleet) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^scenario +batched$", out, re.MULTILINE)
    assert "testbed: fused is left out: fused: has no such class\n" in err

    assert main(["matrix", "--subjects", "f*", *named], FakeFleet) == 2
    assert capsys.readouterr().err.endswith("testbed: of --subjects f* none can be lifted\n")
    assert main(["matrix", "--subjects", "fused,batch*", *named], FakeFleet) == 2
    assert capsys.readouterr().err == "testbed: fused: has no such class\n"


def test_without_a_cached_release_a_subject_must_be_named(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "cached", list)
    assert main(["matrix"], FakeFleet) == 2
    assert "no release is in the cache: name --subjects" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--subjects", "nonesuch"], "nonesuch"),
        (["--subjects", "batched", "--scenarios", "wide.json"], "pp8tp8 needs 64 ranks"),
        (
            ["--subjects", "batched", "--scenarios", "calm.json,calm.json"],
            "two scenarios are named",
        ),
        (["--expect", "absent.json"], "absent.json: cannot be read"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(
    folder: Path, capsys: Capture, arguments: list[str], said: str
) -> None:
    write(folder, scenario("calm"), scenario("wide", topology="pp8tp8"))
    assert main(["matrix", *arguments], FakeFleet) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
    assert not (folder / "reports").exists()


PINS = """{"cells": [
    {"scenario": "calm", "subject": "batched", "verdict": "ok"},
    {"scenario": "crash", "subject": "fused", "verdict": "crash", "step": %s, "ranks": [1],
     "why": "it is killed"}]}"""


def pinned_run(folder: Path, step: str) -> int:
    write(folder, scenario("calm"), scenario("crash"))
    (folder / "pins.json").write_text(PINS % step)
    return main(["matrix", "--expect", "pins.json"], FakeFleet)


def test_cells_as_pinned_end_in_0_and_are_the_matrix(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.sessions.catalog.BUILTIN", folder)
    assert pinned_run(folder, "0") == 0
    out, _ = capsys.readouterr()
    assert "2 cells: 1 ok, 1 crash" in out


def test_a_cell_not_as_pinned_ends_in_1_and_says_how(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.sessions.catalog.BUILTIN", folder)
    assert pinned_run(folder, "1") == 1
    assert capsys.readouterr().out.endswith(
        "✗ crash with fused: pinned to crash at step 1 on ranks 1, got crash at step 0 on ranks 1\n"
    )


def test_pins_of_none_of_the_cells_are_no_success(folder: Path, capsys: Capture) -> None:
    other = folder / "other.json"
    pin = {"scenario": "elsewhere", "subject": "batched", "verdict": "ok"}
    other.write_bytes(msgspec.json.encode({"cells": [pin]}))
    arguments = ["--subjects", "fused", "--scenarios", write(folder, scenario("calm"))]
    assert main(["matrix", *arguments, "--expect", str(other)], FakeFleet) == 1
    assert "✗ none of these cells is pinned" in capsys.readouterr().out


def test_a_pinned_cell_that_the_testbed_fails_in_ends_in_3(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.sessions.catalog.BUILTIN", folder)
    monkeypatch.setattr(subjects, "prepare", _refuse)
    monkeypatch.setattr(matrix, "prepare", lambda _: None)
    assert pinned_run(folder, "0") == 3
    assert "2 cells: 2 error" in capsys.readouterr().out


def _refuse(name: str) -> None:
    raise EnvironmentFault(f"{name} cannot be had")


def test_json_on_standard_output_stands_alone(folder: Path, capsys: Capture) -> None:
    named = write(folder, scenario("calm"))
    arguments = ["matrix", "--subjects", "batched", "--scenarios", named, "--json", "-"]
    assert main(arguments, FakeFleet) == 0
    out, err = capsys.readouterr()
    assert [each["mark"] for each in msgspec.json.decode(out)["cells"]] == ["✓"]
    assert "1 cell: 1 ok" in err


def test_a_cell_is_told_in_one_line_of_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    named = write(folder, scenario("crash-with-a-long-name-" + "x" * 40))
    assert main(["matrix", "--subjects", "batched", "--scenarios", named], FakeFleet) == 0
    told = terminal.getvalue().split("\n")[0]
    assert len(told) == 40
    assert told.startswith("C0       crash-with-a-long-name-xx")
    assert told.endswith("…")
