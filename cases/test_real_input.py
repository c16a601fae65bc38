"""Real input: prefills of 3.5K, 32K and 128K tokens with shared prefixes, a generated conversation
trace, and the published one where its file is.
"""

import pytest

from cases.spread import SUBJECTS
from testbed.model.scenario import Scenario, load
from testbed.pytest_plugin import RunCase
from testbed.sessions.catalog import find
from testbed.workloads.trace import located


@pytest.mark.scenarios("prefill-*", topologies="pp2tp2", subjects=SUBJECTS)
def test_prefill(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("conversation", topologies="pp2tp2", subjects=SUBJECTS)
def test_conversation(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


def published_trace_is_here() -> bool:
    (path,) = find("trace-conversation")
    return located(load(path).workload["path"]).exists()


# Not a skip: without the file there is nothing to run, and `conversation` has run in its place.
if published_trace_is_here():

    @pytest.mark.scenarios("trace-conversation", topologies="pp2tp2", subjects=SUBJECTS)
    def test_published_trace(scenario: Scenario, check: RunCase) -> None:
        check(scenario)
