"""Planted bugs, each under its scenario: caught by the oracle that names its cause; and what is
right there, under the same scenario, left alone.

The canaries are the smallest random scenarios in which the soak found a planted bug.
"""

import pytest

from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase
from testbed.sessions import catalog
from testbed.subjects import bugs


@pytest.fixture
def planted(scenario: Scenario) -> Scenario:
    """The scenario as its file has it: another subject or topology would show nothing."""
    (own,) = catalog.load([scenario.name])
    if scenario != own:
        pytest.skip(f"{scenario.name} is for {own.subject} at {own.topology}")
    return own


@pytest.mark.scenarios("bug-*", "canary-*")
def test_a_planted_bug_is_caught_by_the_oracle_that_names_its_cause(
    planted: Scenario, check: RunCase
) -> None:
    check(planted)


@pytest.mark.scenarios("bug-*", "canary-*")
def test_what_is_right_is_left_alone(planted: Scenario, check: RunCase) -> None:
    check(planted.but(subject=bugs.sound(planted.subject)))
