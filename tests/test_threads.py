"""Threads of a rank, each with a group of its own: recorded, judged and proven dead one by one."""

from collections.abc import Iterator

import pytest

from testbed.oracles import judge
from testbed.scenario import Scenario, from_object
from testbed.trace.events import Enter
from testbed.verdict import Outcome
from testbed.world import Fleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(4) as made:
        yield made


def scenario(subject: str) -> Scenario:
    return from_object(
        {
            "name": "threads",
            "topology": {"tp": 4},
            "subject": f"tests.threaded:{subject}",
            "steps": 8,
            "deadline_ms": 3000,
            "workload": {
                "kind": "scripted",
                "writes": [{"at": 0, "ready_after": 1}, {"at": 3, "ready_after": 1}],
                "loads": [{"at": 1, "ready_after": 1}],
            },
        },
        "this test",
    )


def test_two_threads_with_groups_of_their_own_are_sound_every_time(fleet: Fleet) -> None:
    for _ in range(5):
        record = fleet.run(scenario("Threaded"))
        verdict = judge(record)
        assert verdict.outcome is Outcome.OK, verdict.summary
    entered = [event for event in record.ranks[0].events if isinstance(event, Enter)]
    assert {event.thread for event in entered} == {0, 1, 2}
    assert sum(event.thread > 0 for event in entered) == 16


def test_a_reduction_that_one_thread_leaves_out_is_a_hang_at_that_reduction(fleet: Fleet) -> None:
    """Nobody can prove that the main threads, which wait for the others in no recorded operation,
    would never go on.
    """
    verdict = judge(fleet.run(scenario("OneSided")))
    assert verdict.outcome is Outcome.HANG, verdict.summary
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.minority == (1,)
    assert verdict.first_divergence.channel == "group1[0, 1, 2, 3]"
    assert "rank 1 made no all_reduce #7 of group1[0, 1, 2, 3]" in verdict.summary
