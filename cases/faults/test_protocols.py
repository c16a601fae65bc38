"""The protocols that no release has, or none has any more: deferred, world, local."""

import pytest

from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase

HERE = {"topologies": "pp2tp2", "subjects": "deferred world local"}


@pytest.mark.scenarios("empty-follower-*", "empty-leader-peer-*", "empty-leader-both", **HERE)
@pytest.mark.scenarios("skew-followers-slower-3", "skew-never-*", "skew-leader-peer-*", **HERE)
@pytest.mark.scenarios("none-controller-follower", "none-controller-leader-peer", **HERE)
@pytest.mark.scenarios("claim-one-agreement", **HERE)
def test_each_degrades_in_its_own_way(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("empty-all", "many-idle-rounds", "storage-*", "prefill-3k5", **HERE)
def test_each_is_in_step_where_nothing_is_wrong(scenario: Scenario, check: RunCase) -> None:
    check(scenario)
