"""Two sides compared: which verdicts are worse, which cost more operations; and the command."""

import re
from pathlib import Path

import msgspec
import pytest

from reports.comparison import compare, document, for_terminal, only_one_side, tally, worse
from reports.matrix import Line, Matrix
from reports.matrix import document as matrix_document
from reports.results import Row, error_row
from testbed.cli.command import main
from testbed.model.errors import BadInput
from testbed.model.scenario import to_object
from tests.fake_fleet import FakeFleet, scenario

Capture = pytest.CaptureFixture[str]


def cell(
    verdict: str,
    name: str = "skew",
    subject: str = "s",
    *,
    step: int | None = 1,
    oracle: str | None = None,
    ops: tuple[float, float] = (2, 1),
) -> Row:
    """A row with that verdict; ops: sync operations a step on the leader stage, on followers."""
    made = error_row(scenario(name, subject=subject), "so it went")
    made["verdict"], made["step"], made["oracle"] = verdict, step, oracle
    made["ops"] = {"sync_per_step_leader": ops[0], "sync_per_step_follower": ops[1]}
    return made


def side(*cells: Row) -> Matrix:
    return Matrix(
        world=4,
        out="x",
        subjects=list(dict.fromkeys(each["subject"] for each in cells)),
        scenarios=[Line(each["scenario"], each["topology"]) for each in cells],
        cells=list(cells),
    )


BROKEN = ("violation", "deadlock", "crash", "hang")


@pytest.mark.parametrize("broken", BROKEN)
def test_down_the_order_ok_degraded_broken_is_worse_and_up_is_better(broken: str) -> None:
    for before, after in (("ok", "degraded"), ("degraded", broken), ("ok", broken)):
        (down,) = compare(side(cell(before)), side(cell(after)))
        (up,) = compare(side(cell(after)), side(cell(before)))
        assert (down.change, up.change) == ("worse", "better")
        assert worse([down], strict_ops=False) == [down]
        assert worse([up], strict_ops=True) == []


def test_from_one_way_of_being_broken_to_another_is_a_change_and_not_worse() -> None:
    for before in BROKEN:
        for after in BROKEN:
            (pair,) = compare(side(cell(before)), side(cell(after)))
            assert pair.change == ("same" if before == after else "changed")
            assert worse([pair], strict_ops=True) == []


def test_another_step_or_oracle_of_the_same_verdict_is_a_change() -> None:
    before = side(cell("violation", oracle="agreement"))
    for after in (
        cell("violation", oracle="agreement", step=2),
        cell("violation", oracle="pairing"),
    ):
        assert compare(before, side(after))[0].change == "changed"


def test_of_an_error_of_the_testbed_nothing_is_known() -> None:
    for before, after in (("error", "ok"), ("hang", "error")):
        (pair,) = compare(side(cell(before)), side(cell(after)))
        assert pair.change == "unknown"
        assert worse([pair], strict_ops=True) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((2, 1), (2, 1), "same"),
        ((2, 1), (4, 2), "more"),
        ((2, 1), (2, 2), "more"),
        ((4, 2), (2, 1), "fewer"),
        ((4, 1), (2, 2), "mixed"),
    ],
)
def test_operations_are_compared_on_leaders_and_on_followers(
    before: tuple[float, float], after: tuple[float, float], told: str
) -> None:
    pairs = compare(side(cell("ok", ops=before)), side(cell("degraded", ops=after)))
    assert pairs[0].ops == told
    (same_verdict,) = compare(side(cell("ok", ops=before)), side(cell("ok", ops=after)))
    assert worse([same_verdict], strict_ops=False) == []
    assert bool(worse([same_verdict], strict_ops=True)) == (told in ("more", "mixed"))


def test_operations_of_a_run_that_was_cut_short_are_not_compared() -> None:
    for cut in (cell("crash"), cell("violation", oracle="agreement")):
        assert compare(side(cell("ok", ops=(9, 9))), side(cut))[0].ops == "not compared"
    over = cell("violation", oracle="budget", ops=(4, 2))
    assert compare(side(over), side(cell("ok")))[0].ops == "fewer"


def test_one_subject_each_is_compared_under_any_name_several_each_with_its_own() -> None:
    (pair,) = compare(side(cell("ok", subject="a")), side(cell("hang", subject="b")))
    assert (pair.subject, pair.change) == ("", "worse")
    two = side(cell("ok", subject="a"), cell("ok", subject="b"))
    pairs = compare(two, side(cell("hang", subject="b")))
    assert [(pair.subject, pair.change) for pair in pairs] == [("b", "worse")]


def test_what_one_side_has_alone_is_named() -> None:
    a, b = side(cell("ok"), cell("ok", "calls")), side(cell("ok"), cell("ok", "polls"))
    assert len(compare(a, b)) == 1
    assert only_one_side(a, b) == ["calls", "polls"]


def test_sides_with_nothing_in_common_are_bad_input() -> None:
    with pytest.raises(BadInput, match="no scenario in common"):
        compare(side(cell("ok", "one")), side(cell("ok", "other")))


def test_the_table_shows_what_differs_worst_first() -> None:
    before = [cell("ok", name) for name in ("same", "fewer", "worse")]
    after = [cell("ok", "same"), cell("ok", "fewer", ops=(1, 1)), cell("hang", "worse", step=3)]
    pairs = compare(side(*before), side(*after))
    lines = [re.split(r" {2,}", line.strip()) for line in for_terminal(pairs).split("\n")]
    assert lines[0] == ["scenario", "A", "B", "verdict", "sync A", "sync B", "sync/step"]
    assert lines[2:] == [
        ["worse", "✓", "H3", "worse"],
        ["fewer", "✓", "✓", "2 / 1", "1 / 1", "fewer"],
    ]
    assert tally(pairs) == (
        "3 pairs: 1 worse, 2 same; sync operations a step: fewer in 1, same in 1, not compared in 1"
    )
    assert for_terminal(pairs[:1]) == ""


def test_the_json_counts_changes_and_has_every_pair() -> None:
    told = document(compare(side(cell("ok")), side(cell("hang"))), "a", "b")
    assert (told["format"], told["a"], told["b"]) == (1, "a", "b")
    assert (told["counts"]["verdict"]["worse"], told["counts"]["verdict"]["same"]) == (1, 0)
    assert (told["pairs"][0]["a"], told["pairs"][0]["b"]) == ("✓", "H1")


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("calm", "crash"):
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(to_object(scenario(name))))
    return tmp_path


def write(folder: Path, name: str, *cells: Row) -> str:
    (folder / name).write_bytes(msgspec.json.encode(matrix_document(side(*cells))))
    return name


def no_fleet(world: int, *, oversubscribe: bool = False, port: int = 0) -> FakeFleet:
    raise AssertionError("a fleet was started")


def test_two_subjects_are_run_on_one_fleet_and_alike_ones_end_in_0(
    folder: Path, capsys: Capture
) -> None:
    fleets: list[FakeFleet] = []

    def make_fleet(world: int, *, oversubscribe: bool = False, port: int = 0) -> FakeFleet:
        fleets.append(FakeFleet(world))
        return fleets[-1]

    arguments = ["compare", "batched", "fused", "--scenarios", "calm.json,crash.json"]
    assert main(arguments, make_fleet) == 0
    out, _ = capsys.readouterr()
    assert "2 pairs: 2 same" in out
    assert [case.case_id for case in fleets[0].ran] == [
        "calm-batched-pp2tp2",
        "crash-batched-pp2tp2",
        "calm-fused-pp2tp2",
        "crash-fused-pp2tp2",
    ]


def test_a_worse_side_b_ends_in_1_and_says_how_to_run_it_again(
    folder: Path, capsys: Capture
) -> None:
    a = write(folder, "a.json", cell("ok", "calm"), cell("ok", "crash"))
    assert main(["compare", a, "fused", "--scenarios", "crash.json"], FakeFleet) == 1
    lines = capsys.readouterr().out.rstrip().split("\n")
    assert lines[-2].startswith("worse: crash at pp2tp2, ✓ before, C0 now: ")
    assert re.match(r"replay it: \S+ -m testbed replay reports/out/", lines[-1])


def test_a_file_against_a_subject_says_which_scenarios_are_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("testbed.sessions.catalog.BUILTIN", folder)
    a = write(folder, "a.json", cell("ok", "calm"))
    assert main(["compare", a, "fused"], FakeFleet) == 0
    assert "1 pair: 1 same" in capsys.readouterr().out


def test_two_files_are_compared_without_running(folder: Path, capsys: Capture) -> None:
    a = write(folder, "a.json", cell("ok"), cell("hang", "other"))
    b = write(folder, "b.json", cell("ok", ops=(4, 2)), cell("crash", "other"))
    assert main(["compare", a, b, "--json", "c.json"], no_fleet) == 0
    assert "2 pairs: 1 changed, 1 same" in capsys.readouterr().out
    counts = msgspec.json.decode((folder / "c.json").read_bytes())["counts"]
    assert (counts["verdict"]["changed"], counts["ops"]["more"]) == (1, 1)
    assert main(["compare", a, b, "--strict-ops"], no_fleet) == 1
    assert "sync operations a step: more: skew at pp2tp2" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["skew", "sk*", "skew,other,"])
def test_of_two_files_scenarios_are_chosen_by_their_names_alone(
    folder: Path, capsys: Capture, named: str
) -> None:
    a = write(folder, "a.json", cell("ok"), cell("ok", "other"), cell("hang", "third"))
    b = write(folder, "b.json", cell("ok"), cell("ok", "other"), cell("crash", "third"))

    assert main(["compare", a, b, "--scenarios", named], no_fleet) == 0

    both = "other" in named
    assert f"{1 + both} pair{'s' * both}: {1 + both} same" in capsys.readouterr().out


def test_a_file_may_stand_for_the_scenario_it_holds(folder: Path, capsys: Capture) -> None:
    a = write(folder, "a.json", cell("ok", "calm"), cell("ok", "other"))
    b = write(folder, "b.json", cell("ok", "calm"), cell("ok", "other"))

    assert main(["compare", a, b, "--scenarios", "calm.json"], no_fleet) == 0
    assert "1 pair: 1 same" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["skwe", "calm.json"])
def test_what_names_no_scenario_of_two_files_is_told_with_both(
    folder: Path, capsys: Capture, named: str
) -> None:
    a, b = (write(folder, name, cell("ok")) for name in ("a.json", "b.json"))

    assert main(["compare", a, b, "--scenarios", f"skew,{named}"], no_fleet) == 2
    assert capsys.readouterr().err == (
        f"testbed: --scenarios '{named}' names no scenario of a.json and b.json\n"
    )


def test_a_subject_against_a_file_says_which_scenario_files_are_missing(
    folder: Path, capsys: Capture
) -> None:
    a = write(folder, "a.json", cell("ok", "calm"))

    assert main(["compare", a, "fused"], no_fleet) == 2
    assert capsys.readouterr().err == (
        "testbed: a.json has 'calm', not built in: to run the other side, "
        "name its scenario files with --scenarios\n"
    )
    assert main(["compare", a, "fused", "--scenarios", "calm.json"], FakeFleet) == 0


def test_a_pair_that_the_testbed_failed_in_ends_in_3(folder: Path) -> None:
    a = write(folder, "a.json", cell("ok"))
    b = write(folder, "b.json", cell("error"))
    assert main(["compare", a, b], no_fleet) == 3


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("absent.json", "batched", "absent.json: cannot be read"),
        ("batched", "nonesuch", "nonesuch"),
        ("calm.json", "batched", "is no matrix"),
    ],
)
def test_bad_input_is_one_line(folder: Path, capsys: Capture, a: str, b: str, said: str) -> None:
    assert main(["compare", a, b], no_fleet) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
