"""Promises held against every subject: #33473's one agreement a step, storage counts that stay
in the stage.
"""

from cases.spread import PIPELINES, spread
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase


@spread("claim-one-agreement")
def test_one_all_reduce_instead_of_two_and_followers_query_nothing(
    scenario: Scenario, check: RunCase
) -> None:
    check(scenario)


@spread("claim-stage-local-*", topologies=PIPELINES)
def test_storage_counts_of_one_stage_never_reach_another(
    scenario: Scenario, check: RunCase
) -> None:
    check(scenario)
