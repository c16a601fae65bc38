"""Messages without the other end, and Works that nobody waited for."""

from dataclasses import replace
from typing import Any

import pytest

from testbed.analysis.view import View
from testbed.model.events import Dropped, Enter, Event, Exit, Left, Raised, Settled
from testbed.model.record import RunRecord
from testbed.model.verdict import Finding, Outcome
from testbed.oracles import bounded, conservation, judge
from tests.record_builder import Model, cut, inserted, with_events, with_rank

WORK: tuple[Any, ...] = ("pp[tp0]", 0, 1, 5, "", "float32", 8, [], "loop>push", (), "own.py:3")
TAKEN: tuple[Any, ...] = ("pp[tp0]", 0, 0, 5, "", "float32", 8, [], "loop>take", (), "own.py:9")
SENT = (Enter(1, 0, "isend", *WORK), Exit(1, 0, [], 0, True))
WAITED = (Enter(1, 0, "wait", *WORK), Exit(1, 0, []))
RECEIVED = (Enter(1, 0, "recv", *TAKEN), Exit(1, 0, []))
ABOUT = ("isend", "pp[tp0]", 0, 1, 5)


def found(record: RunRecord) -> list[Finding]:
    return list(conservation.check(View(record)))


def run(on_0: tuple[Event, ...], on_1: tuple[Event, ...]) -> RunRecord:
    return inserted(inserted(Model("pp2tp1").record(), 0, 1, *on_0), 1, 1, *on_1)


def test_a_message_that_was_received_and_waited_for_is_sound() -> None:
    assert found(run((*SENT, *WAITED), RECEIVED)) == []


def test_a_send_that_nobody_received_is_told_with_its_line() -> None:
    (finding,) = found(run((*SENT, *WAITED), ()))

    assert (finding.outcome, finding.step) == (Outcome.VIOLATION, 1)
    assert finding.ranks[0] == 0
    assert "nobody received isend #0 (loop>push at own.py:3) of rank 0" in finding.summary


def test_a_receive_that_nothing_came_for_is_told_with_its_line() -> None:
    posted = (Enter(1, 0, "irecv", *TAKEN), Exit(1, 0, []))

    (finding,) = found(run((), posted))

    assert "nothing came for irecv #0 (loop>take at own.py:9) of rank 1" in finding.summary


@pytest.mark.parametrize("event", [Left(1, 0, "TimeoutError"), None])
def test_where_an_exception_came_out_or_a_rank_was_cut_short_nothing_is_said(
    event: Event | None,
) -> None:
    if event is not None:
        record = run((SENT[0], event), ())
    else:
        record = run((*SENT, *WAITED), ())
        record = cut(record, 1, lambda one: one.step == 1, exit="stopped")

    assert found(record) == []


def test_a_wait_whose_time_ran_out_and_was_caught_leaves_nothing_unsaid() -> None:
    posted = (Enter(1, 0, "irecv", *TAKEN), Exit(1, 0, [], 0, True))
    waited = Enter(1, 0, "wait_irecv", *TAKEN)._replace(timed=True)

    assert found(run((), (*posted, waited, Left(1, 0, "RuntimeError")))) == []
    assert found(run((), (*posted, waited, Exit(1, 0, [])))) != []


def test_a_thread_that_still_listens_when_its_rank_ends_is_sound() -> None:
    listens = Enter(1, 0, "recv", *TAKEN)
    assert found(run((), (listens._replace(thread=1),))) == []
    posted = (Enter(1, 0, "irecv", *TAKEN)._replace(thread=1),)
    waits = Enter(1, 0, "wait_irecv", *TAKEN)._replace(thread=1)
    assert found(run((), (*posted, Exit(1, 0, [], 1, True), waits))) == []


def test_a_receive_left_out_in_the_middle_is_told_where_the_ends_came_apart() -> None:
    """Every later receive takes the message before the one that was meant."""

    def skip(events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            if isinstance(event, Enter) and event.op == "recv":
                if event.step == 2:
                    continue
                if event.step > 2:
                    event = event._replace(ordinal=event.ordinal - 1)
            kept.append(event)
        return kept

    record = replace(with_events(Model("pp2tp1").record(), 1, skip), promises={})

    (finding,) = found(record)

    assert (finding.step, finding.ranks) == (2, (1,))
    assert finding.divergence is not None
    assert finding.divergence.ordinal == 2


def test_a_work_that_nobody_waited_for_is_told_at_the_end() -> None:
    (finding,) = found(run(SENT, RECEIVED))

    assert (finding.step, finding.ranks) == (4, (0,))
    assert "never waited for its isend #0 (loop>push at own.py:3) of step 1" in finding.summary


@pytest.mark.parametrize("how", ["polled", "future"])
def test_a_work_that_was_found_to_be_over_otherwise_is_sound(how: str) -> None:
    assert found(run((*SENT, Settled(1, 0, how, *ABOUT)), RECEIVED)) == []


def test_a_work_that_was_thrown_away_comes_before_the_rank_that_waits_for_it() -> None:
    record = run((*SENT, Dropped(1, 0, *ABOUT)), RECEIVED)
    stuck = cut(record, 1, lambda one: one == RECEIVED[0], exit="stopped")

    verdict = judge(replace(stuck, ended="deadline", promises={}))

    assert (verdict.oracle, verdict.step, verdict.ranks) == ("conservation", 1, (0,))
    assert "threw away the Work of its isend #0 (loop>push at own.py:3)" in verdict.summary
    assert verdict.notes[0].startswith("then hang")


def test_a_work_that_went_with_an_exception_is_no_fault_of_its_own() -> None:
    record = run(SENT, ())
    record = cut(record, 0, lambda one: one == SENT[1])
    end = (Dropped(1, 0, *ABOUT), Raised(1, 0, "KeyError", "'w0'", "", ""))
    record = with_rank(record, 0, exit="raised", events=(*record.ranks[0].events, *end))

    assert found(record) == []


@pytest.mark.parametrize(("same_site", "told"), [(True, [1]), (False, [])])
def test_sends_that_are_kept_are_counted_from_the_record(same_site: bool, told: list[int]) -> None:
    def hoarded(events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            kept.append(event)
            if isinstance(event, Exit) and isinstance(kept[-2], Enter) and kept[-2].op == "isend":
                kept[-1] = event._replace(work=True)
                for tag in (5, 6):
                    extra = kept[-2]._replace(tag=tag, ordinal=event.step)
                    kept += [extra, Exit(event.step, 0, [], 0, True)]
        return [one for one in kept if not (isinstance(one, Enter) and one.op == "wait")]

    record = with_events(Model("pp2tp1").record(), 0, hoarded)
    record = replace(record, promises={"same-site": same_site})

    steps = [finding.step for finding in bounded.check(View(record))]

    # Three of a step are kept: six after the second one, and four may be.
    assert steps == told
