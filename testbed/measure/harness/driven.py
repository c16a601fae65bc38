"""Harnesses that live in one Python process: it is started, told which cases to run, and listened
to.

The process says a line of JSON when it is ready and one after each case (``drive``).
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from testbed.measure.harness.case import Kind
from testbed.measure.harness.contender import NO_VERDICT, NOT_RUN, Ended, ended
from testbed.measure.harness.killing import end_all, environment
from testbed.model.errors import EnvironmentFault

_START_LIMIT_S = 120.0
_CASE_LIMIT_S = 120.0


class Driven:
    """driver: as ``drive`` knows it. warm: the first case pays for the processes of all."""

    def __init__(self, driver: str, name: str, world: int, *, isolates: bool, warm: bool) -> None:
        self.name = name
        self.isolates = isolates
        self._driver = driver
        self._world = world
        self._warm = warm

    def null_ms(self, count: int) -> list[float]:
        """Without the start of the driver, nor of processes that serve all cases."""
        cases = [Kind.NULL] * (count + self._warm)
        taken = []
        with self._running(cases) as lines:
            for _ in cases:
                case = self._case(lines, _CASE_LIMIT_S)
                if not case.passed or case.ms is None:
                    raise EnvironmentFault(f"{self.name}: {case.told}")
                taken.append(case.ms)
        return taken[self._warm :]

    def fault(self, kind: Kind, patience_s: float) -> tuple[Ended, Ended]:
        """The faulty case after a sound one, and a null case after it."""
        with self._running([Kind.NULL, kind, Kind.NULL]) as lines:
            before = self._case(lines, _CASE_LIMIT_S)
            if not before.passed:
                raise EnvironmentFault(f"{self.name}: {before.told}")
            struck = self._case(lines, patience_s)
            if struck.ms is None:
                return struck, NOT_RUN
            return struck, self._case(lines, _CASE_LIMIT_S)

    def _case(self, lines: "_Lines", limit_s: float) -> Ended:
        line = lines.next(limit_s)
        if line is None:
            return NO_VERDICT
        return ended(line["ms"], line["said"], passed=line["passed"])

    @contextmanager
    def _running(self, cases: Sequence[Kind]) -> Iterator["_Lines"]:
        command = [sys.executable, "-m", "testbed.measure.harness.drive", self._driver]
        process = subprocess.Popen(
            [*command, str(self._world), *(case.value for case in cases)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        try:
            lines = _Lines(process)
            if lines.next(_START_LIMIT_S) is None:
                raise EnvironmentFault(f"{self.name}: its driver did not start")
            yield lines
        finally:
            end_all(process)


class _Lines:
    """Lines of JSON that a process writes; whatever else it prints is passed over."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._stream = process.stdout.fileno()
        self._held = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(process.stdout, selectors.EVENT_READ)

    def next(self, limit_s: float) -> dict[str, Any] | None:
        """The next one; None if none came within the limit, or the process has ended."""
        until = time.monotonic() + limit_s
        while True:
            line, found, rest = self._held.partition(b"\n")
            if found:
                self._held = rest
                if line.startswith(b"{"):
                    told: dict[str, Any] = json.loads(line)
                    return told
            elif not self._selector.select(max(until - time.monotonic(), 0)):
                return None
            else:
                more = os.read(self._stream, 1 << 16)
                if not more:
                    return None
                self._held += more
