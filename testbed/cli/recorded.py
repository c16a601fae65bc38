"""Recorded runs by the names that people give them, and their verdicts. Imports no torch."""

import sys
from collections.abc import Iterable
from pathlib import Path

from testbed.model import record
from testbed.sessions.finding import find_run, find_runs, taken_from
from testbed.sessions.result import RunResult, judged


def found(named: str) -> Path:
    """As ``find_run``; says of which session it is where the latest has no such run."""
    path = find_run(named)
    _say_session(named, path)
    return path


def all_found(named: Iterable[str]) -> list[Path]:
    """As ``find_runs`` of each; likewise."""
    paths = []
    for each in named:
        found = find_runs(each)
        _say_session(each, found[0])
        paths += found
    return paths


def _say_session(named: str, path: Path) -> None:
    told = taken_from(named, path)
    if told:
        print(f"testbed: {told}", file=sys.stderr)


def judged_again(path: Path) -> RunResult:
    return judged(record.load(path), path if path.is_dir() else path.parent)
