"""SGLang's HiRadixCache: what its releases did otherwise than the cache that came after it, one of
each dialect. The newest two are built by no server any more.
"""

import pytest

from testbed.model.scenario import Scenario
from testbed.pytest_plugin import RunCase

NO_AGREEMENT = "sglang==0.5.12:hiradix"
LATER = "sglang==0.5.14:hiradix sglang==0.5.18:hiradix sglang==0.5.20:hiradix"
SOUND = "batched"


@pytest.mark.scenarios(
    "hiradix-stages-apart",
    "hiradix-storage-of-the-leader",
    topologies="pp2tp1",
    subjects=f"{SOUND} {NO_AGREEMENT} {LATER}",
)
def test_across_stages(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios(
    "hiradix-own-loads",
    "hiradix-write-refused-on-a-peer",
    "hiradix-prefetch-unknown",
    topologies="pp1tp2",
    subjects=f"{SOUND} {NO_AGREEMENT} {LATER}",
)
def test_inside_a_stage(scenario: Scenario, check: RunCase) -> None:
    check(scenario)


@pytest.mark.scenarios("hiradix-load-back-poll", topologies="pp1tp2", subjects=f"{SOUND} {LATER}")
def test_a_poll_that_reduces_where_the_local_event_has_fired(
    scenario: Scenario, check: RunCase
) -> None:
    check(scenario)
