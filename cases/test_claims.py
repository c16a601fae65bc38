"""Promises held against every subject: the seed's one agreement a step, storage counts that stay in the stage."""

import pytest

from cases.spread import EVERY, PIPELINES, SUBJECTS
from testbed.pytest_plugin import RunCase
from testbed.scenario import Scenario


@pytest.mark.scenarios("claim-one-agreement", topologies=EVERY, subjects=SUBJECTS)
def test_one_all_reduce_instead_of_two_and_followers_query_nothing(
    scenario: Scenario, check: RunCase
) -> None:
    check(scenario)


@pytest.mark.scenarios("claim-stage-local-*", topologies=PIPELINES, subjects=SUBJECTS)
def test_storage_counts_of_one_stage_never_reach_another(
    scenario: Scenario, check: RunCase
) -> None:
    check(scenario)
