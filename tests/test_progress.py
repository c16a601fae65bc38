"""Progress of long work, on a terminal and in a log."""

import io
import re

import pytest

from reports.progress import progress

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    log, clock = io.StringIO(), Clock()
    with progress("matrix", 8, stream=log, clock=clock) as bar:
        for _ in range(8):
            bar.now("never told in a log")
            clock.now += 4
            bar.advance()
    assert log.getvalue().splitlines() == [
        "matrix: 3/8 cases, 0.25 cases/s, 20 s left",
        "matrix: 6/8 cases, 0.25 cases/s, 8 s left",
        "matrix: 8/8 cases, 0.25 cases/s, 32 s in all",
    ]


def test_an_unknown_end_has_no_time_left_and_fractions_are_counted() -> None:
    log, clock = io.StringIO(), Clock()
    with progress("fetch", None, unit="MB", stream=log, clock=clock) as bar:
        clock.now += 100
        bar.advance(12.5)
    assert log.getvalue().splitlines() == [
        "fetch: 12.5 MB, 0.125 MB/s",
        "fetch: 12.5 MB, 0.125 MB/s, 1 min 40 s in all",
    ]


def test_work_that_breaks_off_says_how_far_it_came() -> None:
    log, clock = io.StringIO(), Clock()

    def broken() -> None:
        with progress("soak", 9000, stream=log, clock=clock) as bar:
            clock.now += 2
            bar.advance(2)
            clock.now += 2 * 3600
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        broken()
    assert log.getvalue() == "soak: 2/9000 cases, 0.000278 cases/s, 2 h 0 min in all\n"


def test_results_go_to_standard_output_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = io.StringIO()
    with progress("matrix", 1, stream=log) as bar:
        bar.say("a cell")
    assert capsys.readouterr().out == "a cell\n"
    assert "a cell" not in log.getvalue()


def test_a_terminal_gets_a_bar_with_count_rate_and_time_that_takes_itself_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    with progress("matrix", 3, stream=terminal) as bar:
        for name in ("skew[one]", "two", "three"):
            bar.now(name)
            bar.advance()
    drawn = terminal.getvalue()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    assert COLOUR.search(drawn)
    assert re.search(r"matrix .*3/3 cases, [\d.e+]+ cases/s .*\d:\d\d:\d\d .*three", text)
    assert drawn.endswith(("\x1b[2K", "\x1b[?25h"))


def test_no_color_and_a_dumb_terminal_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = Terminal()
    with progress("matrix", 1, stream=colourless) as bar:
        bar.advance()
    assert not COLOUR.search(colourless.getvalue())
    monkeypatch.setenv("TERM", "dumb")
    dumb = Terminal()
    with progress("matrix", 1, stream=dumb) as bar:
        bar.advance()
    assert "\x1b" not in dumb.getvalue()
    assert "1/1 cases" in dumb.getvalue()
