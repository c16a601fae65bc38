"""Three releases under eight scenarios with a published report: each verdict exactly as pinned.

``pinned.json`` holds them with their reasons; ``python -m testbed matrix --expect`` reads it too.
"""

from pathlib import Path

import pytest

from testbed.matrix import pins as pinned
from testbed.matrix import run as matrix
from testbed.matrix.pins import difference, exactly
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.pytest_plugin import RunCase

PINS = {pin.place: pin for pin in pinned.load(Path(__file__).with_name("pinned.json"))}
SCENARIOS = dict.fromkeys(scenario for scenario, _ in PINS)
SUBJECTS = dict.fromkeys(subject for _, subject in PINS)
HOME = Topology(pp=2, tp=2)


@pytest.mark.scenarios(*SCENARIOS, subjects=list(SUBJECTS))
def test_a_cell_is_exactly_as_pinned(scenario: Scenario, run_case: RunCase) -> None:
    pin = PINS.get((scenario.name, scenario.subject))
    if pin is None or scenario.topology != HOME:
        pytest.skip(f"{scenario.case_id} is not pinned")
    (case,) = matrix.cases([scenario], [scenario.subject])
    verdict = run_case(case.but(expect=pin.exactly)).verdict
    got = exactly(verdict.outcome, verdict.oracle, verdict.step, verdict.ranks)
    assert difference(pin, got) == ""


def test_three_releases_and_eight_scenarios_are_pinned_all_of_them_published() -> None:
    published = {scenario.name for scenario in matrix.published()}
    assert (len(SUBJECTS), len(SCENARIOS), len(PINS)) == (3, 8, 24)
    assert SCENARIOS.keys() <= published
