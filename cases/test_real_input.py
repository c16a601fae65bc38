"""Real input: prefills of 3.5K, 32K and 128K tokens with shared prefixes, and a published
request trace.
"""

import pytest

from cases.spread import SUBJECTS
from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase
from testbed.workloads.trace import located


@pytest.mark.scenarios("prefill-*", topologies="pp2tp2", subjects=SUBJECTS)
def test_prefill(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("trace-conversation", topologies="pp2tp2", subjects=SUBJECTS)
def test_trace(scenario: Scenario, check: RunCase) -> None:
    trace = located(scenario.workload["path"])
    if not trace.exists():
        pytest.skip(f"no request trace at {trace}: README says where they are published")
    check(scenario)
