"""Catalog: names to scenarios, scenarios to topologies and subjects."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.model.errors import BadInput
from testbed.model.topology import Topology
from testbed.sessions import catalog
from testbed.sessions.catalog import Axes, spread
from tests.fake_fleet import scenario

PEER_FAULT = [{"kind": "no-controller", "on": {"tp": 1}}]


def topologies(text: str) -> list[Topology]:
    return [Topology.parse(word) for word in text.split()]


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "builtin"
    folder.mkdir()
    for stem in ("skew-one", "skew-two", "empty"):
        (folder / f"{stem}.json").write_text("{}")
    monkeypatch.setattr(catalog, "BUILTIN", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_file_comes_before_a_built_in_of_the_same_name(builtin: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("{}")
    assert catalog.find("empty") == [tmp_path / "empty"]


def test_a_glob_finds_built_ins_in_order(builtin: Path) -> None:
    assert [file.stem for file in catalog.find("skew-*")] == ["skew-one", "skew-two"]


def test_a_glob_may_be_absolute(builtin: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for stem in ("b", "a"):
        (elsewhere / f"{stem}.json").write_text("{}")
    assert catalog.find(f"{elsewhere}/*.json", base=builtin) == [
        elsewhere / "a.json",
        elsewhere / "b.json",
    ]


def test_a_name_that_is_not_there_gets_the_closest_one_offered(builtin: Path) -> None:
    with pytest.raises(BadInput, match=r"skew-ones: no such scenario .*did you mean skew-one\?"):
        catalog.find("skew-ones")


def test_a_scenario_is_spread_over_subjects_and_topologies() -> None:
    cases = spread(scenario("x"), topologies("pp2tp1 pp2tp2"), ["batched", "fused"])
    assert [case.case_id for case in cases] == [
        "x-batched-pp2tp1",
        "x-batched-pp2tp2",
        "x-fused-pp2tp1",
        "x-fused-pp2tp2",
    ]


def test_without_topologies_and_subjects_a_scenario_keeps_its_own() -> None:
    assert spread(scenario()) == [scenario()]


def test_topologies_at_which_a_selector_names_nobody_are_left_out() -> None:
    case = scenario(faults=PEER_FAULT)
    spread_out = spread(case, topologies("pp2tp1 pp2tp2 pp1tp4"))
    assert [str(each.topology) for each in spread_out] == ["pp2tp2", "pp1tp4"]


def test_a_selector_that_names_nobody_anywhere_is_bad_input() -> None:
    with pytest.raises(BadInput, match="'on' selects no rank at pp2tp1"):
        spread(scenario(faults=PEER_FAULT), topologies("pp2tp1"))


@pytest.mark.parametrize(
    ("axes", "listed", "kept"),
    [
        (Axes(), "pp2tp1 pp4tp1", ["pp2tp1", "pp4tp1"]),
        (Axes(pp=2), "pp2tp1 pp4tp1 pp2tp1cp2", ["pp2tp1", "pp2tp1cp2"]),
        (Axes(pp=8), "pp2tp2 pp4tp1", ["pp8tp2"]),
        (Axes(tp=1, cp=1), "pp2tp1cp2 pp2tp1", ["pp2tp1"]),
    ],
)
def test_sizes_keep_the_topologies_that_have_them_else_make_one(
    axes: Axes, listed: str, kept: Sequence[str]
) -> None:
    assert [str(topology) for topology in axes.among(topologies(listed))] == kept
