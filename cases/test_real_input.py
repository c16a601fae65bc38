"""Real input: prefills of 3.5K, 32K and 128K tokens with shared prefixes, and a published
request trace.
"""

import os
from pathlib import Path

import pytest

from cases.spread import SUBJECTS
from testbed.pytest_plugin import RunCase
from testbed.scenario import Scenario

TRACES = Path(os.environ.get("TESTBED_TRACES", "../shared/data/mooncake"))


@pytest.mark.scenarios("prefill-*", topologies="pp2tp2", subjects=SUBJECTS)
def test_prefill(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("trace-conversation", topologies="pp2tp2", subjects=SUBJECTS)
def test_trace(scenario: Scenario, check: RunCase) -> None:
    trace = TRACES / Path(scenario.workload["path"]).name
    if not trace.exists():
        pytest.skip(f"no request trace at {trace}: README says where they are published")
    check(scenario.but(workload={**scenario.workload, "path": str(trace)}))
