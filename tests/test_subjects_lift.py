"""Lifting, on a release made up here: no network, no SGLang."""

import dataclasses
import traceback
from pathlib import Path

import pytest

from testbed.subjects.sglang.checkout import Checkout
from testbed.subjects.sglang.lift import Library, LiftError, is_only_read
from testbed.subjects.sglang.releases import Release, fetch
from tests.fake_sglang import CACHE, NAME, VERSION, Pip


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Release:
    Pip().install(monkeypatch, tmp_path)
    return fetch(VERSION)


@pytest.fixture
def library(release: Release) -> Library:
    return Library(release, replaced={"decorated": lambda function: function})


def test_reached_methods_are_lifted_and_run_by_their_own_names(library: Library) -> None:
    lifted = library.module(NAME).lift_class("Cache", ["check", "missing"], cut=[])
    cache = lifted.cls()
    for name, value in lifted.set_up().items():
        setattr(cache, name, value)
    cache.rank, cache.size = 5, 6

    result = cache.check(limit=2)

    assert set(lifted.methods) == {"check", "count", "size"}
    assert result == 6
    assert cache.waiting == {0: 514, 1: 514}


def test_set_up_gives_what_needs_no_parameter_and_is_read_anew_each_time(library: Library) -> None:
    lifted = library.module(NAME).lift_class("Cache", ["check"], cut=[])

    first, second = lifted.set_up(), lifted.set_up()

    assert set(first) == {"threshold", "waiting", "part"}
    assert lifted.reads - set(first) == {"rank", "held"}
    assert first["waiting"] is not second["waiting"]


def test_lifting_stops_at_a_seam(library: Library) -> None:
    lifted = library.module(NAME).lift_class("Cache", ["through_the_seam"], cut=["seam"])

    assert set(lifted.methods) == {"through_the_seam"}
    assert "seam" not in vars(lifted.cls)


def test_tracebacks_show_the_releases_file_line_and_text(library: Library) -> None:
    cache = library.module(NAME).lift_class("Cache", ["fail"], cut=[]).cls()

    with pytest.raises(ValueError, match="told so") as caught:
        cache.fail()

    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == "sglang-9.8.7/srt/mem_cache/cache.py"
    assert last.line == 'raise ValueError("told so")'
    assert last.lineno == CACHE.splitlines().index('        raise ValueError("told so")') + 1


def test_tuples_enums_and_data_classes_come_from_the_release(library: Library) -> None:
    module = library.module(NAME)

    assert module.get("Pair")(1) == (1, 66)
    assert [each.name for each in dataclasses.fields(module.get("Counted"))] == ["own"]
    assert module.get("BASE").name == "A"


def test_what_is_not_at_hand_raises_only_where_it_is_used(library: Library) -> None:
    cache = library.module(NAME).lift_class("Cache", ["absent"], cut=[]).cls()

    with pytest.raises(LiftError, match=r"cache\.py: name triton comes from triton, which is not"):
        cache.absent()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("CONDITIONAL", "depends on a condition"),
        ("first", "lifting first needs first itself"),
        ("nothing", "has no name nothing"),
    ],
)
def test_what_cannot_be_lifted_is_named_with_its_file(
    library: Library, name: str, why: str
) -> None:
    with pytest.raises(LiftError, match=rf"parts\.py.*{why}"):
        library.module("sglang.srt.mem_cache.parts").get(name)


def test_a_module_that_was_not_kept_is_named(library: Library) -> None:
    with pytest.raises(LiftError, match=r"sglang==9\.8\.7: module .*layers\.not_kept has"):
        library.module("sglang.srt.layers.not_kept")


def test_a_name_bound_in_a_way_that_is_not_lifted_is_no_mistake_of_the_release(
    tmp_path: Path,
) -> None:
    cases = (("A, B = 1, 2", True), ("for B in (1, 2): pass", True), ("A = lambda B: B", False))
    for place, (text, bound) in enumerate(cases):
        file = tmp_path / f"{place}/srt/mem_cache/bound.py"
        file.parent.mkdir(parents=True)
        file.write_text(f"{text}\ndef use(): return B\n")
        library = Library(Checkout("here", tmp_path / str(place)), {})
        use = library.module("sglang.srt.mem_cache.bound").get("use")

        with pytest.raises(LiftError if bound else NameError, match="B"):
            use()


@pytest.mark.parametrize(
    ("text", "only_read"),
    [
        ("class A:\n    def check(self): return self.wanted", True),
        ("# wanted\nclass A: 'says wanted.'", True),
        ("class A:\n    wanted: int", False),
        ("class A:\n    def wanted(self): pass", False),
        ("def make(a): a.wanted = 1", False),
        ("def make(a): setattr(a, 'wanted', 1)", False),
        ("def make(wanted): pass", False),
        ("from b import wanted", False),
        ("def not python", False),
    ],
)
def test_who_could_give_an_object_an_attribute(text: str, only_read: bool) -> None:
    assert is_only_read("wanted", [text]) is only_read
