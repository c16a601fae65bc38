"""A subject of one's own, by ``package.module:Class``: how it is found, and that it runs."""

import importlib
import re
from pathlib import Path

import pytest

from testbed import subjects
from testbed.model.errors import BadInput
from testbed.model.events import Query
from testbed.recorder import ownership
from testbed.subjects import own
from testbed.subjects.base import Subject
from tests.rig import Rig, of_kind

PAGE = Path(__file__).parents[1] / "docs" / "own_subject.md"


def test_only_a_module_and_a_name_in_it_is_a_subject_of_ones_own() -> None:
    assert own.is_own("package.module:Class")
    assert not any(own.is_own(name) for name in ("batched", "bug:no-copy", "sglang==0.5.19", "a:"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_package.module:Class", "is the folder on PYTHONPATH"),
        ("testbed.model.topology:Nothing", "has nothing to call named 'Nothing'"),
        ("testbed.model.topology:MAX_RANKS", "has nothing to call named 'MAX_RANKS'"),
    ],
)
def test_a_name_that_leads_nowhere_is_bad_input(name: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        subjects.check(name)


def test_its_package_is_the_subjects_though_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    for name in ("theirs", "bystander"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
        (site / name / "parts.py").write_text("class Base: pass\n")
    (site / "theirs/subject.py").write_text("def make(*_): pass\n")
    monkeypatch.syspath_prepend(str(site))
    table = {**ownership._table(), str(site.resolve()): ownership.Owner.INSTALLED}
    monkeypatch.setattr(ownership, "_table", lambda: table)
    monkeypatch.setattr(ownership, "_known", {})
    importlib.import_module("bystander.parts")

    own.find("theirs.subject:make")

    owners = [ownership.of_file(str(site / name / "parts.py")) for name in ("theirs", "bystander")]
    assert owners == [ownership.Owner.SUBJECT, ownership.Owner.INSTALLED]


def test_the_example_of_the_page_runs_and_agrees_twice_in_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))

    rig = Rig("mine:make")
    rig.write([1], ready_after=5)
    rig.step()

    assert len(of_kind(rig.recorder.events, Query)) == 2
    assert len([line for line in example.splitlines() if line]) <= 10


def test_the_page_names_every_member_of_the_face() -> None:
    named = set(re.findall(r"`(\w+)[(`]", PAGE.read_text()))

    members = {name for name in vars(Subject) if not name.startswith("_")} | {"promises", "calls"}
    assert members <= named
