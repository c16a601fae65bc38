"""Exact verdicts that cells of a matrix are pinned to, in a file, each with the reason.

    {"cells": [{"scenario": "many-idle-rounds", "subject": "sglang==0.5.19", "verdict": "ok"},
               {"scenario": "empty-follower-write", "subject": "sglang==0.5.19",
                "verdict": "violation", "oracle": "agreement", "step": 1, "ranks": [2],
                "why": "the follower is told to complete what it does not have"}]}

Unlike an ``expect`` of a scenario, which says what it cares about, a pin says all: a verdict that
names an oracle, a step or ranks is pinned to those.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from testbed.model.errors import BadInput
from testbed.model.scenario import Expect, explained
from testbed.model.verdict import Outcome
from testbed.sessions.result import told


def exactly(verdict: Outcome, oracle: str | None, step: int | None, ranks: Sequence[int]) -> Expect:
    """All of a verdict as an expectation."""
    return Expect(verdict, oracle, step, sorted(ranks) or None)


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cell. why: the reason, which every verdict but ``ok`` needs."""

    scenario: str
    subject: str
    verdict: Outcome
    oracle: str | None = None
    step: int | None = None
    ranks: list[int] = []
    why: str = ""

    def __post_init__(self) -> None:
        if self.verdict is not Outcome.OK and not self.why:
            raise ValueError(f"{self.scenario} with {self.subject} has no why: say the reason")

    @property
    def place(self) -> tuple[str, str]:
        """The cell it is for: scenario and subject."""
        return self.scenario, self.subject

    @property
    def exactly(self) -> Expect:
        """The same as an expectation."""
        return exactly(self.verdict, self.oracle, self.step, self.ranks)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cells: list[Pin]


def load(path: Path) -> list[Pin]:
    """Read the pins of a file. Raises BadInput, also where a cell is pinned twice."""
    try:
        pins = msgspec.json.decode(path.read_bytes(), type=_File).cells
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {explained(error, _File)}") from error
    except msgspec.DecodeError as error:
        raise BadInput(f"{path}: is not JSON ({error})") from error
    seen: set[tuple[str, str]] = set()
    for pin in pins:
        if pin.place in seen:
            raise BadInput(f"{path}: {pin.scenario} with {pin.subject} is pinned twice")
        seen.add(pin.place)
    return pins


def difference(pin: Pin, cell: Expect) -> str:
    """How a cell's verdict, given as an expectation that names all it can, differs from its pin, in
    one line; empty where it does not.
    """
    wanted, got = told(pin.exactly), told(cell)
    if wanted == got:
        return ""
    return f"{pin.scenario} with {pin.subject}: pinned to {wanted}, got {got}"
