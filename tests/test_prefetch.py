"""Pages that come from storage: arrival, stopping, the tree and the books, on one rank."""

from typing import Literal

import pytest

from testbed.cache import PrefetchKey, PrefetchOperation
from testbed.model.events import Complete, Sync, Take
from testbed.model.scenario import PrefetchStop
from testbed.scripted_events import Readiness
from testbed.subjects.minimal import MinimalSubject
from tests.rig import RELEASES, Rig, at_hand, of_kind

NAMES = pytest.mark.parametrize("name", ["batched", "fused", *RELEASES])
BLOCKS = (21, 22)
POLICIES: tuple[Literal["best_effort", "wait_complete", "timeout"], ...] = (
    "best_effort",
    "wait_complete",
    "timeout",
)


def asked(rig: Rig, found: int = 2, page_after: Readiness | None = None) -> PrefetchOperation:
    anchor = rig.cache.plant_on_host([20])
    operation = rig.controller.begin_prefetch(anchor, "f0", BLOCKS, found, page_after)
    assert operation is not None
    rig.subject.track_prefetch(operation)
    rig.controller.answer_prefetch(operation)
    return operation


def check(rig: Rig) -> bool:
    return bool(getattr(rig.subject, "calls")["prefetch-check"]("f0"))  # noqa: B009


def free_and_held(rig: Rig) -> int:
    waiting = [str(each) for each in rig.subject.pending()["prefetch"]]
    tree = rig.cache.pages()["host"]
    held = rig.controller.held_by_prefetches(waiting) + rig.controller.host_books()["flight"]
    return tree["free"] + tree["tree"] + tree["flight"] + held


def test_a_key_counts_tokens_and_is_cut_in_tokens() -> None:
    key = PrefetchKey("f0", BLOCKS, page_tokens=16)

    assert len(key) == 32
    assert key[:16].blocks == (21,)
    assert key[:0].blocks == ()
    assert (key[0], key[16]) == BLOCKS
    assert key[:16].request_id == "f0"


@NAMES
def test_pages_arrive_one_after_another_and_go_into_the_tree_when_the_check_stops_it(
    name: str,
) -> None:
    rig = Rig(at_hand(name), storage=True)
    asked(rig)
    total = rig.cache.pages()["host"]["total"]
    rig.step(4)

    over = check(rig)
    rig.step(2)

    assert over
    assert of_kind(rig.recorder.events, Complete)[-1][2:] == ("prefetch", "f0", True, 0)
    match = rig.cache.match_prefix([20, *BLOCKS])
    assert (match.device_pages, match.host_pages) == (0, 3)
    assert rig.cache.lock_totals() == [0, 0]
    assert rig.subject.pending()["prefetch"] == []
    assert free_and_held(rig) == total


@NAMES
def test_what_has_not_arrived_when_it_is_stopped_is_given_back(name: str) -> None:
    rig = Rig(at_hand(name), storage=True)
    asked(rig, page_after=Readiness.steps(2))
    total = rig.cache.pages()["host"]["total"]
    rig.step(4)

    balance = [free_and_held(rig)]
    assert check(rig)
    balance.append(free_and_held(rig))
    rig.step(3)
    balance.append(free_and_held(rig))

    assert rig.cache.match_prefix([20, *BLOCKS]).host_pages == 2
    assert rig.cache.pages()["host"]["free"] == total - 2
    assert balance == [total] * 3


def test_each_policy_stops_it_in_its_own_step() -> None:
    stopped = {}
    for policy in POLICIES:
        rig = Rig("batched", storage=True)
        assert isinstance(rig.subject, MinimalSubject)
        rig.subject.stop = PrefetchStop(policy, timeout_steps=3)
        asked(rig, page_after=Readiness.steps(3))
        step = 0
        while not check(rig):
            rig.step()
            step += 1
        stopped[policy] = step

    # Under way from step 1 on, the pages arrive in steps 4 and 7, and step 7 is the eighth round;
    # its time is over when more than three steps have gone.
    assert stopped == {"best_effort": 0, "timeout": 4, "wait_complete": 8}


def test_a_page_that_was_told_of_and_is_late_is_waited_for() -> None:
    rig = Rig("batched", storage=True)
    operation = asked(rig, page_after=Readiness.steps(5))
    rig.step(2)

    rig.controller.wait_prefetch(operation, 16)

    assert operation.completed_tokens == 16
    assert [sync.stall for sync in of_kind(rig.recorder.events, Sync)] == [4]


def test_an_ack_of_storage_that_is_under_way_is_waited_for() -> None:
    rig = Rig("batched", storage=True)
    rig.write([1])
    rig.step()

    taken = rig.controller.ack_backup_queue.get()

    assert of_kind(rig.recorder.events, Take)[-1].queue == "backup"
    assert taken.completed_tokens == 16
    assert rig.controller.backups() == {}


def test_pages_that_the_tree_has_by_now_are_refused() -> None:
    rig = Rig("batched", storage=True)
    anchor = rig.cache.plant_on_host([20])
    first, second = rig.cache.host.alloc(1), rig.cache.host.alloc(2)
    assert first is not None
    assert second is not None
    rig.cache.host.write(first, rig.cache.contents.of([21]))
    rig.cache.host.write(second, rig.cache.contents.of(BLOCKS))

    refused = [
        rig.cache.insert_on_host(anchor, (21,), first, "a"),
        rig.cache.insert_on_host(anchor, BLOCKS, second, "b"),
    ]

    assert refused == [0, 1]
    assert rig.cache.match_prefix([20, 21, 22]).host_pages == 3
