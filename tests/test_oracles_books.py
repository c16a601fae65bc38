"""conservation, integrity and bounded: one rank's own books."""

from collections.abc import Callable

import pytest

from testbed.analysis.view import View
from testbed.model.events import Begin, Complete, End, Event, Final, Start
from testbed.model.record import RunRecord
from testbed.model.verdict import Finding
from testbed.oracles import bounded, conservation, integrity, judge
from tests.record_builder import Model, changed, cut, inserted, load, write

LAST = 4


def sound() -> RunRecord:
    """w0 and l0 are completed, w1 is in flight when the run ends."""
    return Model(transfers=[write("w0"), load("l0"), write("w1", ready=9)]).record()


def unbalanced(record: RunRecord) -> list[Finding]:
    return list(conservation.check(View(record)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda final: final._replace(host={**final.host, "free": 52}),
            "host pool: rank 2: has 64 pages but accounts for 52 free + 10 tree + 1 flight",
        ),
        (
            lambda final: final._replace(device={**final.device, "tree": 11}),
            "device pool: rank 2: has 64 pages but accounts for 54 free + 11 tree + 0 flight",
        ),
        (
            lambda final: final._replace(locks=[2, 0]),
            "locks: rank 2: holds [lock_ref, host_lock_ref] [2, 0], "
            "what is pending explains [1, 0]",
        ),
        (
            lambda final: final._replace(sends=1),
            "sends: rank 2: has 1 outstanding sends after the last drain",
        ),
        (
            lambda final: final._replace(pending={**final.pending, "write": []}),
            "pending write: rank 2: has ACKs of w1 that nothing is pending for",
        ),
        (
            lambda final: final._replace(pending={**final.pending, "load": ["l0"]}),
            "pending load: rank 2: waits for l0, but its ACK queue is empty",
        ),
    ],
)
def test_books_that_do_not_balance_are_told(change: Callable[[Final], Final], told: str) -> None:
    (finding,) = unbalanced(changed(sound(), 2, Final, LAST, change))

    assert (finding.step, finding.ranks, finding.summary) == (LAST, (2,), told)


def test_all_ranks_whose_books_do_not_balance_are_named_together() -> None:
    record = sound()
    for rank in range(4):
        record = changed(record, rank, Final, LAST, lambda final: final._replace(sends=1))
    record = changed(record, 3, Final, LAST, lambda final: final._replace(locks=[2, 0]))
    record = changed(record, 0, Final, LAST, lambda final: final._replace(sends=2))

    (finding,) = unbalanced(record)

    assert (finding.step, finding.ranks) == (LAST, (0, 1, 2, 3))
    assert finding.summary == (
        "sends: rank 0: has 2 outstanding sends after the last drain; "
        "ranks 1,2: has 1 outstanding sends after the last drain; "
        "rank 3: locks: holds [lock_ref, host_lock_ref] [2, 0], what is pending explains [1, 0], "
        "and has 1 outstanding sends after the last drain"
    )
    assert finding.divergence is not None
    assert finding.divergence.minority == (0, 1, 2, 3)


def test_the_verdict_names_all_ranks_that_broke_their_books() -> None:
    record = sound()
    for rank in range(4):
        record = changed(record, rank, Final, LAST, lambda final: final._replace(sends=1))

    verdict = judge(record)

    assert (verdict.oracle, verdict.step, verdict.ranks) == ("conservation", LAST, (0, 1, 2, 3))
    assert verdict.summary == ("sends: ranks 0,1,2,3: has 1 outstanding sends after the last drain")


def test_who_breaks_later_is_told_apart_from_who_broke_first() -> None:
    record = sound()
    for rank, step in ((0, 3), (1, 2), (2, 2)):
        record = inserted(record, rank, step, Complete(step, 0, "write", "w0", True, 0))

    assert [(each.step, each.ranks) for each in unbalanced(record)] == [(2, (1, 2)), (3, (0,))]


def test_a_transfer_completed_twice_is_told_at_the_second_time() -> None:
    record = inserted(sound(), 1, 3, Complete(3, 0, "write", "w0", True, 0))

    (finding,) = unbalanced(record)

    assert (finding.step, finding.summary) == (
        3,
        "write: rank 1: completed w0 more often than it was started",
    )


def test_a_transfer_started_again_may_be_completed_again() -> None:
    again: list[Event] = [Start(3, 0, "write", "w0", "steps:3")]
    record = inserted(sound(), 1, 3, *again, Complete(3, 0, "write", "w0", True, 0))

    assert unbalanced(record) == []


def test_a_rank_that_never_came_to_its_end_draws_up_no_balance() -> None:
    record = cut(sound(), 2, lambda one: isinstance(one, Begin) and one.step == 3, exit="stopped")

    assert unbalanced(record) == []


def test_wrong_pages_are_told_with_their_number() -> None:
    record = changed(sound(), 3, Complete, 1, lambda one: one._replace(bad_pages=2), nth=1)

    (finding,) = integrity.check(View(record))

    assert (finding.step, finding.ranks, finding.summary) == (
        1,
        (3,),
        "load: rank 3: completed l0 with 2 wrong pages",
    )


def test_all_ranks_with_wrong_pages_in_a_step_are_named_together() -> None:
    record = sound()
    for rank in (1, 3):
        record = changed(record, rank, Complete, 1, lambda one: one._replace(bad_pages=2), nth=1)

    (finding,) = integrity.check(View(record))

    assert finding.ranks == (1, 3)
    assert finding.summary == "load: ranks 1,3: completed l0 with 2 wrong pages"


def test_right_pages_are_silent() -> None:
    assert list(integrity.check(View(sound()))) == []


@pytest.mark.parametrize(
    ("change", "channel"),
    [
        (lambda end: end._replace(sends=5), "sends"),
        (lambda end: end._replace(write=["w1", "w1"]), "write queue"),
        (lambda end: end._replace(load=["l0"]), "load queue"),
        (lambda end: end._replace(pending_write=["w0", "w1"]), "pending writes"),
        (lambda end: end._replace(pending_load=["l0"]), "pending loads"),
    ],
)
def test_what_outgrows_its_bound_is_told_once_at_the_first_step(
    change: Callable[[End], End], channel: str
) -> None:
    record = sound()
    for step in (2, 3, LAST):
        record = changed(record, 0, End, step, change)

    (finding,) = bounded.check(View(record))

    assert (finding.step, finding.ranks) == (2, (0,))
    assert finding.divergence is not None
    assert finding.divergence.channel == channel


def test_all_ranks_over_a_bound_in_a_step_are_named_together() -> None:
    record = sound()
    for rank in range(4):
        record = changed(record, rank, End, 2, lambda end: end._replace(sends=5))

    (finding,) = bounded.check(View(record))

    assert finding.ranks == (0, 1, 2, 3)
    assert finding.summary == "sends: ranks 0,1,2,3: keeps 5 sends, at most 4 may be left"


def test_queues_as_long_as_what_is_in_flight_are_within_bounds() -> None:
    transfers = [write(f"w{place}", ready=None) for place in range(40)]

    assert list(bounded.check(View(Model(transfers=transfers).record()))) == []
