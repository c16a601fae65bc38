"""Pinned cells: what a file of them must say, and how a verdict differs from its pin."""

from pathlib import Path

import msgspec
import pytest

from testbed.matrix.pins import Pin, difference, exactly, load
from testbed.model.errors import BadInput
from testbed.model.verdict import Outcome

PLACE = {"scenario": "empty", "subject": "fused"}
BROKEN = {**PLACE, "verdict": "violation", "oracle": "agreement", "step": 1, "ranks": [2]}
PIN = Pin(
    "empty", "fused", Outcome.VIOLATION, oracle="agreement", step=1, ranks=[3, 2], why="no ACK"
)


def written(folder: Path, *cells: object) -> Path:
    file = folder / "pins.json"
    file.write_bytes(msgspec.json.encode({"cells": cells}))
    return file


def test_pins_are_read_in_order(tmp_path: Path) -> None:
    pins = load(
        written(tmp_path, {**PLACE, "verdict": "ok"}, {**BROKEN, "subject": "s", "why": "w"})
    )
    assert [pin.place for pin in pins] == [("empty", "fused"), ("empty", "s")]
    assert pins[1].exactly == exactly(Outcome.VIOLATION, "agreement", 1, [2])


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([BROKEN], "empty with fused has no why: say the reason"),
        ([{**PLACE, "verdict": "fine"}], "give one of ok, degraded, violation"),
        ([{**PLACE, "verdict": "ok", "steps": 1}], "unknown field `steps`"),
        ([{"scenario": "empty", "verdict": "ok"}], "`subject`"),
        ([{**PLACE, "verdict": "ok"}, {**BROKEN, "why": "w"}], "empty with fused is pinned twice"),
    ],
)
def test_what_pins_nothing_exactly_is_bad_input(
    tmp_path: Path, cells: list[object], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        load(written(tmp_path, *cells))


def test_what_is_no_json_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    file.write_text("{")
    with pytest.raises(BadInput, match="is not JSON"):
        load(file)


def test_a_verdict_that_is_all_of_the_pin_does_not_differ() -> None:
    assert difference(PIN, exactly(Outcome.VIOLATION, "agreement", 1, (2, 3))) == ""


@pytest.mark.parametrize(
    "got",
    [
        exactly(Outcome.OK, None, None, ()),
        exactly(Outcome.VIOLATION, "pairing", 1, (2, 3)),
        exactly(Outcome.VIOLATION, "agreement", 2, (2, 3)),
        exactly(Outcome.VIOLATION, "agreement", 1, (2,)),
        exactly(Outcome.VIOLATION, None, None, ()),
    ],
)
def test_a_verdict_that_differs_in_anything_differs(got: object) -> None:
    assert isinstance(got, type(PIN.exactly))
    assert difference(PIN, got).startswith(
        "empty with fused: pinned to violation by agreement at step 1 on ranks 2,3, got "
    )
