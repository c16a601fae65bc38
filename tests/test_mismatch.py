"""Standstills in collectives that do not fit together, told from those that may still go on."""

from typing import Any

import pytest

from testbed.analysis.mismatch import stuck_in_mismatch
from testbed.model.events import Enter, Event, Exit, Final, Group, Sync
from testbed.model.topology import Topology

TP2 = Topology(1, 2, 1)
PP2TP2 = Topology(2, 2, 1)
SUM = Enter(0, 0, "all_reduce", "tp[pp0]", 3, -1, -1, "MIN", "int64", 4, [], "agree")
WAITS = Enter(0, 0, "recv", "pp[tp0]", 0, 0, 7, "", "int64", 4, [], "pass_down")
FINAL = Final(9, 0, {}, {}, [0, 0], [0, 0], {}, 0)


@pytest.mark.parametrize(
    "change", [{"numel": 1}, {"dtype": "int32"}, {"reduce_op": "MAX"}, {"op": "broadcast"}]
)
def test_members_of_a_collective_that_entered_it_differently_are_stuck(
    change: dict[str, Any],
) -> None:
    assert stuck_in_mismatch({0: [SUM], 1: [SUM._replace(**change)]}, TP2)


def test_one_that_came_through_and_is_stuck_in_the_next_does_not_fit_either() -> None:
    # gloo let rank 1 out of the shorter one; it stands in the next, rank 0 still in this one.
    after: list[Event] = [SUM._replace(numel=1), Exit(0, 0, []), SUM._replace(ordinal=4)]
    assert stuck_in_mismatch({0: [SUM], 1: after}, TP2)


def test_those_who_entered_it_alike_may_go_on_any_moment() -> None:
    assert not stuck_in_mismatch({0: [SUM], 1: [SUM]}, TP2)
    assert not stuck_in_mismatch({0: [SUM], 1: [SUM._replace(ordinal=4, numel=1)]}, TP2)


@pytest.mark.parametrize("last", [Exit(0, 0, []), Sync(0, 0, "w0", 0)])
def test_while_another_rank_may_go_on_nothing_is_said(last: Event) -> None:
    events: dict[int, list[Event]] = {
        0: [SUM],
        1: [SUM._replace(numel=1)],
        2: [WAITS, last],
        3: [FINAL],
    }
    assert not stuck_in_mismatch(events, PP2TP2)
    assert stuck_in_mismatch({**events, 2: [WAITS]}, PP2TP2)


def test_a_member_that_the_case_does_not_have_is_nobody() -> None:
    made = Group(0, 0, "mine", [0, 1, 99])
    mine = SUM._replace(group="mine", ordinal=0)

    assert not stuck_in_mismatch({0: [made, mine], 1: [made, mine]}, TP2)
    assert stuck_in_mismatch({0: [made, mine], 1: [made, mine._replace(numel=1)]}, TP2)
