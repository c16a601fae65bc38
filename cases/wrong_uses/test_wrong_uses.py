"""Wrong uses of the collectives: the recorder names where each began, and is clean on correct ones
that look like them. What gloo and DETAIL say of them: ``docs/wrong_uses.md``.
"""

from pathlib import Path

import pytest

from cases.wrong_uses.bare import run
from cases.wrong_uses.correct import CORRECT, MESSAGE_THEN_COLLECTIVE
from cases.wrong_uses.misuses import WRONG
from cases.wrong_uses.table import CLEAN, SILENT, told
from cases.wrong_uses.use import Use
from testbed.pytest_plugin import RunCase

PAGE = Path(__file__).parents[2] / "docs" / "wrong_uses.md"
UNSEEN = (
    "other-reduction",
    "swapped",
    "send-shorter",
    "send-other-dtype",
    "read-before-wait",
    "written-before-wait",
)


def by_name(use: Use) -> str:
    return use.name


@pytest.fixture
def fits(use: Use, pytestconfig: pytest.Config) -> Use:
    if use.ranks > pytestconfig.getoption("--world"):
        pytest.skip(f"{use.name} needs {use.ranks} ranks")
    return use


@pytest.mark.parametrize("use", WRONG, ids=by_name)
def test_the_first_divergence_of_a_wrong_use_is_named(fits: Use, check: RunCase) -> None:
    told_first = check(fits.scenario()).verdict.first_divergence

    assert fits.first is not None
    assert told_first is not None
    assert (told_first.step, told_first.channel, told_first.ordinal, told_first.minority) == (
        fits.first.step,
        fits.first.channel,
        fits.first.ordinal,
        fits.first.minority,
    )


@pytest.mark.parametrize("use", CORRECT, ids=by_name)
def test_nothing_is_said_of_a_correct_use(fits: Use, check: RunCase) -> None:
    assert check(fits.scenario()).verdict.notes == ()


@pytest.mark.parametrize("detail", [False, True], ids=["plain", "DETAIL"])
@pytest.mark.parametrize("use", [use for use in WRONG if use.name in UNSEEN], ids=by_name)
def test_six_wrong_uses_give_wrong_results_without_a_word(use: Use, detail: bool) -> None:
    assert told(use, run(use, detail=detail)).startswith(f"{SILENT}, wrong result on rank")


def test_detail_reports_a_mismatch_on_a_correct_program() -> None:
    assert told(MESSAGE_THEN_COLLECTIVE, run(MESSAGE_THEN_COLLECTIVE, detail=False)) == CLEAN
    assert "mismatch" in told(MESSAGE_THEN_COLLECTIVE, run(MESSAGE_THEN_COLLECTIVE, detail=True))


@pytest.mark.parametrize("use", [*WRONG, *CORRECT], ids=by_name)
def test_the_page_has_a_row_for_it(use: Use) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {use.what} ")]
    verdict = CLEAN if use.first is None else str(use.first.verdict)
    assert len(rows) == 1
    assert verdict in rows[0]
