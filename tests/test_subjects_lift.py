"""Lifting and fetching, on releases made up here: no network, no SGLang."""

import dataclasses
import subprocess
import traceback
import zipfile
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import BadInput, EnvironmentFault
from testbed.subjects.sglang import releases
from testbed.subjects.sglang.lift import Library, LiftError
from testbed.subjects.sglang.releases import Release, fetch

CACHE = """
from __future__ import annotations
import logging
import triton
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from sglang.srt.mem_cache.parts import BASE, Part, decorated
from .parts import helper as renamed
if TYPE_CHECKING:
    from sglang.srt.elsewhere import Absent
logger = logging.getLogger(__name__)
LIMIT = BASE + 1

class Pair(NamedTuple):
    first: Absent
    second: int = LIMIT

@dataclass
class Counted:
    shared: ClassVar[int] = 3
    own: int = 4

class Cache(Unknown):
    def __init__(self, params):
        self.threshold = 256
        self.rank = params.rank
        self.waiting: dict[int, Absent] = {}
        self.part = Part()
        self.unread = 1

    def check(self, limit=LIMIT):
        for _ in range(limit):
            self.count()
        return self.size

    @decorated
    def count(self):
        self.waiting[len(self.waiting)] = renamed(self.threshold)
        return self.rank, self.part

    def fail(self):
        raise ValueError("told so")

    def absent(self):
        return triton.cdiv(1, 2)

    def unreached(self):
        return self.check()

    def seam(self):
        return 1 / 0

    def through_the_seam(self):
        return self.seam()

    @property
    def size(self):
        return self.held

    @size.setter
    def size(self, value):
        self.held = value
"""
PARTS = """
from enum import IntEnum
class Part:
    BASE = 7
class Kind(IntEnum):
    A = int.from_bytes(b"A", "big")
BASE = Kind.A
def helper(value):
    return other(value) * 2
def other(value):
    return value + 1
def decorated(function):
    raise AssertionError("replaced")
if BASE:
    CONDITIONAL = 1
first = second + 1
second = first + 1
"""
FILES = {
    "sglang/srt/mem_cache/cache.py": CACHE,
    "sglang/srt/mem_cache/parts.py": PARTS,
    "sglang/srt/layers/not_kept.py": "",
    "sglang/cli.py": "",
}
NAME = "sglang.srt.mem_cache.cache"


def wheel(folder: Path) -> Path:
    path = folder / "sglang-9.8.7-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in FILES.items():
            archive.writestr(member, text)
    return path


class Pip:
    """Stands for pip: puts a wheel into ``--dest``, or fails saying ``stderr``."""

    def __init__(self, stderr: str = "") -> None:
        self.stderr = stderr
        self.calls = 0

    def __call__(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        self.calls += 1
        if not self.stderr:
            wheel(Path(command[command.index("--dest") + 1]))
        code = 1 if self.stderr else 0
        return subprocess.CompletedProcess(command, code, "", self.stderr)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pip:
    pip = Pip()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", pip)
    return pip


@pytest.fixture
def release(pip: Pip) -> Release:
    return fetch("9.8.7")


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


def test_only_needed_sources_are_kept_and_a_second_fetch_asks_nobody(
    pip: Pip, release: Release
) -> None:
    again = fetch("9.8.7")

    assert again == release
    assert pip.calls == 1
    assert set(release.manifest.files) == {"srt/mem_cache/cache.py", "srt/mem_cache/parts.py"}


def test_a_changed_cache_is_noticed(release: Release) -> None:
    (release.folder / "srt/mem_cache/cache.py").write_text("changed = True\n")

    with pytest.raises(EnvironmentFault, match="the cached file was changed; delete its folder"):
        release.read("srt/mem_cache/cache.py")


def test_a_broken_cache_entry_is_fetched_anew(pip: Pip, release: Release) -> None:
    (release.folder / releases.MANIFEST).write_text("{")

    fetch("9.8.7")

    assert pip.calls == 2


def test_a_release_that_does_not_exist_is_bad_input(pip: Pip) -> None:
    pip.stderr = "ERROR: no version that satisfies sglang==9.9.9 (from versions: 0.5.22, 0.5.23)\n"

    with pytest.raises(BadInput, match=r"sglang==9\.9\.9: no such release .*0\.5\.23\)") as caught:
        fetch("9.9.9")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    ["ERROR: no version that satisfies sglang==0.5.1 (from versions: none)\n", "ERROR: no pip\n"],
)
def test_an_index_out_of_reach_is_the_environments_fault_in_one_line(pip: Pip, said: str) -> None:
    pip.stderr = said

    with pytest.raises(EnvironmentFault, match="cannot be fetched and is not in the cache") as told:
        fetch("0.5.1")

    assert "\n" not in str(told.value)
