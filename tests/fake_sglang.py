"""A made-up release: its sources, its wheel, and a pip that delivers it without a network."""

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from testbed.subjects.sglang import releases

VERSION = "9.8.7"
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
    """The release's wheel, made in the folder."""
    path = folder / f"sglang-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in FILES.items():
            archive.writestr(member, text)
    return path


class Pip:
    """Stands for pip: puts a wheel into ``--dest``, or fails saying ``stderr``."""

    def __init__(self, stderr: str = "") -> None:
        self.stderr = stderr
        self.calls = 0

    def install(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Stand for pip, with a cache of its own under ``cache``."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        monkeypatch.setattr(subprocess, "run", self)
        monkeypatch.setattr(releases, "_SEEN_SOUND", set())

    def __call__(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        self.calls += 1
        if not self.stderr:
            wheel(Path(command[command.index("--dest") + 1]))
        code = 1 if self.stderr else 0
        return subprocess.CompletedProcess(command, code, "", self.stderr)
