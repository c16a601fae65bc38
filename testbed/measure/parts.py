"""Runs a job's parts one after the other, each a command of its own, and tells how they ended."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testbed.model.errors import printable

State = Literal["ok", "skipped", "failed"]

SKIPPED = ": skipped: "
"""In the last line of a command that had nothing to run on, before the reason."""


@dataclass(frozen=True)
class Part:
    """How one ended. told: the last thing it said. log: all that it said."""

    name: str
    state: State
    seconds: float
    told: str
    log: Path

    def one_line(self) -> str:
        """``failed  test-bugs  12 s  3 failed, 30 passed``."""
        return f"{self.state:<8} {self.name:<14} {self.seconds:>6.0f} s  {self.told}"


def run_part(
    name: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> Part:
    """Run a command to its end, its output in ``log``. environment: added to this process's."""
    began = time.monotonic()
    with log.open("wb") as out:
        try:
            status = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            ).returncode
        except FileNotFoundError as error:
            out.write(f"{error}\n".encode())
            status = 127
    told = printable(last_words(log))
    state: State = "failed" if status else "skipped" if SKIPPED in told else "ok"
    return Part(name, state, time.monotonic() - began, told, log)


def last_words(log: Path) -> str:
    """The last line with a word in it, but for make's own remark that a recipe failed."""
    lines = [line.strip(" =\t") for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if any(map(str.isalpha, line))]
    own = [line for line in said if ": *** [" not in line]
    return (own or said or ["it said nothing"])[-1]


def table(parts: Sequence[Part]) -> str:
    """Markdown, a line a part."""
    rows = [
        f"| {part.name} | {part.state} | {part.seconds:.0f} | {_in_a_cell(part.told)} |"
        for part in parts
    ]
    return "\n".join(["| part | | seconds | |", "|---|---|---:|---|", *rows])


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def all_well(parts: Sequence[Part]) -> bool:
    """Whether none failed."""
    return all(part.state != "failed" for part in parts)
