"""HiRadixCache of real releases, one of each dialect, on one rank and on small worlds."""

from pathlib import Path

import pytest

from testbed import subjects
from testbed.model.events import Complete, End, Event
from testbed.model.topology import Topology
from testbed.subjects.sglang import Unliftable
from tests.rig import Rig, at_hand, of_kind, operations, run_ranks

NO_AGREEMENT = "sglang==0.5.12:hiradix"
POLLED_SENDS = "sglang==0.5.14:hiradix"
HITS_AFTER_REVOKES = "sglang==0.5.17:hiradix"
NEWEST = "sglang==0.5.20:hiradix"
EVERY = pytest.mark.parametrize("name", [NO_AGREEMENT, POLLED_SENDS, HITS_AFTER_REVOKES, NEWEST])
BOTH = pytest.mark.parametrize("storage", [False, True], ids=["no-storage", "storage"])


@pytest.mark.parametrize(("name", "pages"), [(NO_AGREEMENT, 2), (POLLED_SENDS, 4), (NEWEST, 4)])
def test_of_a_node_split_in_flight_releases_without_a_publish_list_store_the_lower_part_only(
    name: str, pages: int
) -> None:
    rig = Rig(at_hand(name), storage=True)
    rig.write([1, 2, 3, 4], ready_after=1)
    rig.cache.match_prefix([1, 2, 7])

    rig.step(2)

    (operation,) = rig.controller.backups().values()
    assert len(operation.host_indices) == pages * rig.cache.sizes.page_tokens


@EVERY
def test_a_storage_query_that_found_too_little_is_revoked_and_its_pages_come_back(
    name: str,
) -> None:
    rig = Rig(at_hand(name), storage=True)
    anchor = rig.cache.plant_on_host([1])
    free = rig.cache.host.free_pages
    rig.prefetch(anchor, tokens_found=rig.cache.sizes.page_tokens - 1)

    held = anchor.host_lock_ref, rig.subject.pending()["prefetch"]
    rig.step()

    assert held == (1, ["r0"])
    assert anchor.host_lock_ref == 0
    assert rig.cache.host.free_pages == free
    assert rig.subject.pending()["prefetch"] == []
    assert rig.controller.prefetch_tokens_occupied == 0


@EVERY
def test_fetched_pages_go_into_the_tree_once_the_check_stops_the_prefetch(name: str) -> None:
    rig = Rig(at_hand(name), storage=True)
    anchor = rig.cache.plant_on_host([1])
    free = rig.cache.host.free_pages
    rig.prefetch(anchor, tokens_found=2 * rig.cache.sizes.page_tokens)

    rig.step(4)
    over = rig.subject.calls["prefetch-check"]("r0")  # type: ignore[attr-defined]
    rig.step()

    assert over is True
    assert rig.completed() == ["r0"]
    assert rig.cache.match_prefix([1, 901, 902]).host_pages == 3
    assert rig.cache.host.free_pages == free - 2
    assert rig.cache.lock_totals() == [0, 0]


@EVERY
def test_a_write_back_waits_for_what_is_pending_and_leaves_no_lock(name: str) -> None:
    rig = Rig(at_hand(name))
    node = rig.write([1], ready_after=3)

    rig.subject.calls["write-back"]("")  # type: ignore[attr-defined]

    assert node.backed_up
    assert rig.completed() == ["w1"]
    assert rig.cache.lock_totals() == [0, 0]


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (NO_AGREEMENT, {"flush"}),
        (POLLED_SENDS, {"flush", "load-back-poll"}),
        (NEWEST, {"load-back-poll"}),
    ],
)
def test_what_can_be_called_besides_the_check_is_what_the_release_has(
    name: str, calls: set[str]
) -> None:
    offered = set(Rig(at_hand(name)).subject.calls)  # type: ignore[attr-defined]

    assert offered == calls | {"write-back", "storage-drain", "prefetch-check"}


def test_a_release_that_has_no_such_class_any_more_says_which_file_is_missing() -> None:
    with pytest.raises(Unliftable, match=r"sglang==0\.5\.23.*mem_cache\.hiradix_cache has no file"):
        subjects.prepare("sglang==0.5.23:hiradix")


def one_load_ready_here_first(rig: Rig) -> None:
    """A load that is ready at once on rank 0 and a step later on the others."""
    rig.load([1], ready_after=0 if rig.groups.rank == 0 else 1)
    rig.step(2)


def test_before_there_was_an_agreement_each_rank_completed_its_own_loads(tmp_path: Path) -> None:
    ranks = run_ranks(Topology(tp=2), NO_AGREEMENT, one_load_ready_here_first, tmp_path)

    assert [_step_of_load(events) for events in ranks] == [0, 1]
    assert [operations(events, "all_reduce") for events in ranks] == [[], []]


def test_since_then_the_slowest_rank_says_when_a_load_is_complete(tmp_path: Path) -> None:
    ranks = run_ranks(Topology(tp=2), POLLED_SENDS, one_load_ready_here_first, tmp_path)

    assert [_step_of_load(events) for events in ranks] == [1, 1]


def _step_of_load(events: list[Event]) -> int:
    (done,) = of_kind(events, Complete)
    return done.step


def idle(rig: Rig) -> None:
    """Steps without any transfer; how many sends each leaves is recorded."""
    for _ in range(4):
        rig.step()
        sends = rig.subject.outstanding_sends()
        rig.recorder.add(End, [], [], [], [], {}, sends, [0, 0], 0)


@pytest.mark.parametrize(("name", "left"), [(POLLED_SENDS, [2, 4, 6, 8]), (NEWEST, [2, 2, 2, 2])])
def test_sends_that_are_only_polled_pile_up(name: str, left: list[int], tmp_path: Path) -> None:
    leader, follower = run_ranks(Topology(pp=2), name, idle, tmp_path)

    assert [end.sends for end in of_kind(leader, End)] == left
    assert [end.sends for end in of_kind(follower, End)] == [0, 0, 0, 0]
