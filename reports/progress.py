"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere.

::

    with progress("matrix", total=len(cells)) as bar:
        for cell in cells:
            bar.now(cell.name)
            run(cell)
            bar.advance()

All of it goes to standard error, so that standard output stays what the command prints. Whoever
prints a line of results while the bar stands hands it to ``bar.say``: the bar moves below it.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

PLAIN_EVERY_S = 10.0


class Bar(Protocol):
    """What ``progress`` hands out."""

    def now(self, what: str) -> None:
        """Tell what is being worked on; shown on a terminal only."""

    def advance(self, by: float = 1) -> None:
        """Count ``by`` units as done."""

    def say(self, line: str, file: TextIO | None = None) -> None:
        """Print a line of results (default: to standard output) without tearing the bar."""


@contextmanager
def progress(
    title: str,
    total: float | None,
    *,
    unit: str = "cases",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Bar]:
    """A bar from 0 to ``total`` units, None where the end is unknown.

    stream: where it is drawn, standard error by default. A terminal gets a bar that removes itself
    at the end; anything else a line every ten seconds and one at the end, also after an exception.
    clock: seconds, for tests.
    """
    stream = sys.stderr if stream is None else stream
    if is_terminal(stream):
        with _drawn(title, total, unit, stream) as drawn:
            yield drawn
        return
    plain = _Plain(title, total, unit, stream, clock)
    try:
        yield plain
    finally:
        plain.close()


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal on which a line can be drawn over."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class _Plain:
    """Lines for a log: few, each of them whole."""

    def __init__(
        self,
        title: str,
        total: float | None,
        unit: str,
        stream: TextIO,
        clock: Callable[[], float],
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._stream, self._clock = stream, clock
        self._done = 0.0
        self._began = self._told = clock()

    def now(self, what: str) -> None:
        """A log would fill with it."""

    def advance(self, by: float = 1) -> None:
        """Count, and tell if the last line is long ago."""
        self._done += by
        now = self._clock()
        if now - self._told >= PLAIN_EVERY_S and self._done != self._total:
            self._told = now
            self._tell(_left(self._done, self._total, now - self._began))

    def say(self, line: str, file: TextIO | None = None) -> None:
        """As print does."""
        print(line, file=file or sys.stdout, flush=True)

    def close(self) -> None:
        """The last line: how far it came and how long it took."""
        self._tell(f"{_seconds(self._clock() - self._began)} in all")

    def _tell(self, rest: str) -> None:
        elapsed = self._clock() - self._began
        words = [f"{self._title}: {_count(self._done, self._total)} {self._unit}"]
        words += _rate(self._done / elapsed if elapsed > 0 else None, self._unit)
        print(", ".join([*words, *([rest] if rest else [])]), file=self._stream, flush=True)


class _Drawn:
    """A bar of rich, behind the same face."""

    def __init__(self, bar: Progress, task: Task, stream: TextIO) -> None:
        self._bar, self._task, self._stream = bar, task, stream

    def now(self, what: str) -> None:
        """Shown at the end of the bar's line, cut to what room there is."""
        self._bar.update(self._task.id, now=escape(what))

    def advance(self, by: float = 1) -> None:
        """Moves the bar."""
        self._bar.advance(self._task.id, by)

    def say(self, line: str, file: TextIO | None = None) -> None:
        """Above the bar where both are on the terminal, as print does where not."""
        file = file or sys.stdout
        if is_terminal(file):
            self._bar.console.print(Text.from_ansi(line), soft_wrap=True)
        else:
            print(line, file=file, flush=True)


@contextmanager
def _drawn(title: str, total: float | None, unit: str, stream: TextIO) -> Iterator[_Drawn]:
    # Decided above, once: rich would also take FORCE_COLOR for a terminal.
    console = Console(file=stream, force_terminal=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        _Counted(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
        console=console,
        transient=True,
        # What is piped away must not come out on the terminal: see ``say``.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task(escape(title), total=total, now="")
    with bar:
        yield _Drawn(bar, bar.tasks[0], stream)


class _Counted(ProgressColumn):
    """``120/375 cases, 4.2 cases/s``."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Count and rate of the task."""
        words = [f"{_count(task.completed, task.total)} {self._unit}"]
        return Text(", ".join(words + _rate(task.speed, self._unit)))


def _count(done: float, total: float | None) -> str:
    return _number(done) if total is None else f"{_number(done)}/{_number(total)}"


def _rate(per_s: float | None, unit: str) -> list[str]:
    return [] if not per_s else [f"{per_s:.3g} {unit}/s"]


def _left(done: float, total: float | None, elapsed_s: float) -> str:
    if total is None or done <= 0:
        return ""
    return f"{_seconds((total - done) * elapsed_s / done)} left"


def _number(count: float) -> str:
    return f"{count:.0f}" if float(count).is_integer() else f"{count:.1f}"


def _seconds(seconds: float) -> str:
    """``45 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
