"""Commands that README.md, CONTRIBUTING.md and docs/ show, and whether each exists as shown."""

import argparse
import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
LIMIT_S = 300

PARSERS = (
    "launchers.torchrun_node",
    "testbed",
    "testbed.measure.bench_copies",
    "testbed.measure.same_verdicts",
    "testbed.workloads",
)
"""Modules whose argparse parser is given the arguments. Of any other module a page names, only its
existence is checked."""

_SHOWN = ("python -m ", "make ", "pytest ", "pip install ", "torchx ", "sbatch ")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_SETTING = re.compile(r"[A-Z_]+=.*")
_OPTIONAL = re.compile(r"\[[a-z ]+\]")


class Shown(NamedTuple):
    """A command as a page shows it. block: in a fenced block, to be run as it is; else in prose."""

    page: str
    text: str
    block: bool


class Absent(Exception):
    """A command that does not exist, or does not take these arguments."""


def shown_on(path: Path) -> Iterator[Shown]:
    """Commands of a page: lines of its ``shell`` blocks, and code spans of its prose."""
    text = path.read_text(encoding="utf-8")
    for language, body in _FENCE.findall(text):
        if language == "shell":
            for line in body.splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield Shown(path.name, shlex.join(words), True)
    for span in _SPAN.findall(_FENCE.sub("", text)):
        command = " ".join(span.split())
        if command.startswith(_SHOWN) and not command.endswith(" ..."):
            yield Shown(path.name, command, False)


def all_shown() -> list[Shown]:
    """Commands of all pages."""
    return [shown for page in PAGES for shown in shown_on(page)]


def check(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises Absent unless the command exists and takes the arguments shown."""
    words = shlex.split(_OPTIONAL.sub("", command))
    while words and _SETTING.fullmatch(words[0]):
        words = words[1:]
    match words:
        case ["make", *arguments]:
            _check_make(arguments)
        case ["python", "-m", module, *arguments]:
            _check_module(module, arguments, monkeypatch)
        case ["pytest", *arguments]:
            _check_pytest(arguments)
        case ["pip", "install", "-r", path] | ["sbatch", path]:
            _check_file(path)
        case ["pip", "install", "-e"]:
            _check_file("pyproject.toml")
        case ["torchx", "run", *arguments]:
            _check_file(next(word for word in arguments if ".py:" in word).partition(":")[0])
        case _:
            raise Absent(f"{command}: no such command")


def _check_make(arguments: list[str]) -> None:
    known = set(re.findall(r"^([A-Z_]+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for setting in filter(_SETTING.fullmatch, arguments):
        if setting.partition("=")[0] not in known:
            raise Absent(f"make has no variable {setting}")
    _check_status(["make", "-n", *arguments])


def _check_pytest(arguments: list[str]) -> None:
    _check_status([sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments])


def _check_status(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise Absent(f"{shlex.join(command)}: {(done.stderr or done.stdout)[-500:]}")


def _check_file(path: str) -> None:
    if not (ROOT / path).is_file():
        raise Absent(f"no file {path}")


class _Parsed(BaseException):
    """The parser took the arguments. No Exception, so that no error handler takes it for one."""


def _check_module(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Absent(f"no module {module}")
    if module not in PARSERS:
        return
    parse = argparse.ArgumentParser.parse_args

    def parsed(self: argparse.ArgumentParser, *given: Any, **named: Any) -> NoReturn:
        parse(self, *given, **named)
        raise _Parsed

    said = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parsed)
        patch.delitem(sys.modules, f"{module}.__main__", raising=False)
        patch.setattr(sys, "argv", [module, *_without_placeholders(arguments)])
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=False)
            except _Parsed:
                return
            except SystemExit as end:
                if end.code == 0 and "--help" in arguments:
                    return
    raise Absent(f"python -m {module} does not take {shlex.join(arguments)}: {said.getvalue()}")


def _without_placeholders(arguments: list[str]) -> list[str]:
    """``N`` stands for a number."""
    return ["0" if word == "N" else word for word in arguments]
