"""Every subject on one rank: what completing does to nodes, locks, storage queues and books."""

from types import SimpleNamespace

import pytest

from testbed import protocols, subjects
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.events import Query, Sync, Take
from testbed.subjects import bugs
from tests.rig import MINIMAL, RELEASES, Rig, at_hand, of_kind

EVERY = pytest.mark.parametrize("name", MINIMAL + RELEASES)
# HiRadixCache too, one release of each dialect.
HIRADIX = [f"sglang=={version}:hiradix" for version in ("0.5.12", "0.5.14", "0.5.17", "0.5.20")]
EVERY_CLASS = pytest.mark.parametrize("name", [*MINIMAL, *RELEASES, *HIRADIX])
BOTH = pytest.mark.parametrize("storage", [False, True], ids=["no-storage", "storage"])


@EVERY_CLASS
@BOTH
def test_a_write_that_is_ready_is_backed_up_and_unlocked(name: str, storage: bool) -> None:
    rig = Rig(at_hand(name), storage=storage)
    node = rig.write([1, 2, 3])

    locked = rig.cache.lock_totals()
    rig.step()

    assert locked == [1, 0]
    assert rig.completed() == ["w1"]
    assert node.backed_up
    assert rig.cache.lock_totals()[0] == 0
    assert rig.subject.pending()["write"] == []


@EVERY_CLASS
@BOTH
def test_a_load_that_is_ready_is_usable_and_unlocked(name: str, storage: bool) -> None:
    rig = Rig(at_hand(name), storage=storage)
    node = rig.load([1, 2])

    locked = rig.cache.lock_totals()
    rig.step()

    assert locked == [1, 1]
    assert rig.completed() == ["l1"]
    assert node.usable_on_device
    assert rig.cache.lock_totals() == [0, 0]
    assert rig.subject.pending()["load"] == []


@EVERY_CLASS
def test_what_is_not_ready_stays_pending_and_locked(name: str) -> None:
    rig = Rig(at_hand(name))
    node = rig.write([1], ready_after=2)

    rig.step(2)
    early = rig.completed(), rig.cache.lock_totals(), rig.subject.pending()["write"]
    rig.step()

    assert early == ([], [1, 0], [node.id])
    assert rig.completed() == ["w1"]


@EVERY_CLASS
def test_completing_waits_for_the_acks_own_event_after_asking_it(name: str) -> None:
    rig = Rig(at_hand(name))
    rig.write([1])

    rig.step()

    seen = [type(event) for event in rig.recorder.events if isinstance(event, Query | Sync)]
    assert seen == [Query, Sync]


@EVERY_CLASS
@BOTH
def test_both_parts_of_a_node_split_in_flight_are_backed_up(name: str, storage: bool) -> None:
    rig = Rig(at_hand(name), storage=storage)
    suffix = rig.write([1, 2, 3, 4], ready_after=1)

    prefix = rig.cache.match_prefix([1, 2, 7]).last_device_node
    rig.step(4)

    assert prefix is suffix.parent
    assert prefix.backed_up
    assert suffix.backed_up
    assert rig.cache.lock_totals() == [0, 0]
    assert rig.subject.pending()["backup"] == []


@EVERY_CLASS
def test_a_write_goes_on_to_storage_and_its_ack_unlocks_the_host_copy(name: str) -> None:
    rig = Rig(at_hand(name), storage=True)
    node = rig.write([1])

    rig.step()
    in_storage_flight = len(rig.subject.pending()["backup"]), node.host_lock_ref
    rig.step(2)

    assert in_storage_flight == (1, 1)
    assert rig.subject.pending()["backup"] == []
    assert node.host_lock_ref == 0
    taken = of_kind(rig.recorder.events, Take)
    assert [(event.queue, event.key) for event in taken] == [("backup", node.key)]


@EVERY
def test_a_storage_query_that_found_too_little_is_revoked(name: str) -> None:
    rig = Rig(at_hand(name), storage=True)
    anchor = rig.cache.plant_on_host([1])
    rig.prefetch(anchor, tokens_found=8)

    held = anchor.host_lock_ref, rig.subject.pending()["prefetch"]
    rig.step()

    assert held == (1, ["r0"])
    assert anchor.host_lock_ref == 0
    assert rig.subject.pending()["prefetch"] == []
    assert rig.controller.prefetch_tokens_occupied == 0


@EVERY
def test_released_host_pages_and_sidecar_pages_return_to_their_pools(name: str) -> None:
    rig = Rig(at_hand(name), storage=True, sidecars=("swa",))
    pools = rig.controller.mem_pool_host
    page = rig.cache.sizes.page_tokens
    total = pools.available_size(), pools.pool("swa").available_size()
    main, side = pools.alloc(2 * page), pools.pool("swa").alloc(page)
    rig.controller.append_host_mem_release(main, [SimpleNamespace(name="swa", host_indices=side)])

    rig.step()

    assert (pools.available_size(), pools.pool("swa").available_size()) == total
    taken = [event.queue for event in of_kind(rig.recorder.events, Take)]
    assert taken == ["release", "release", "sidecar:swa"]


@EVERY
def test_without_a_controller_and_storage_a_step_does_nothing(name: str) -> None:
    rig = Rig(at_hand(name))
    rig.subject.controller = None

    rig.step(2)

    assert rig.subject.controller is None
    assert rig.completed() == []


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_given_acks_of_its_own_kind(name: str) -> None:
    rig = Rig(at_hand(name))
    rig.write([1, 2])

    (ack,) = rig.controller.ack_write_queue

    assert type(ack).__name__ == "HiCacheAck"
    assert type(ack).__module__.startswith("lifted.sglang-")
    assert ack.num_tokens == 2 * rig.cache.sizes.page_tokens


def test_only_stage_local_protocols_promise_to_be() -> None:
    promised = {name: Rig(name).subject.promises for name in MINIMAL}

    assert promised == {
        "separate": {"budget": "separate", "same-site": True, "stage-local": True},
        "batched": {"budget": "batched", "same-site": True, "stage-local": True},
        "fused": {"budget": "fused", "same-site": True},
    }


def test_every_available_subject_has_one_line() -> None:
    listed = subjects.available()

    assert set(listed) >= {*protocols.REGISTRY, *bugs.available(), *RELEASES}
    assert all(text and "\n" not in text for text in listed.values())


def test_an_unknown_subject_is_bad_input_naming_what_there_is() -> None:
    with pytest.raises(BadInput, match=r"'bached' is unknown: give one of .*batched.*sglang=="):
        subjects.check("bached")


@pytest.mark.parametrize("version", ["", "latest", "../0.5.19", "0.5.19;x"])
def test_a_release_number_that_is_none_is_bad_input(version: str) -> None:
    with pytest.raises(BadInput, match="is no version number"):
        subjects.check(f"sglang=={version}")


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_tells_its_wheel_and_hash_for_the_record(name: str) -> None:
    told = subjects.versions(at_hand(name))

    assert told["sglang"] == name.removeprefix("sglang==")
    assert told["sglang-wheel"].endswith(".whl")
    assert len(told["sglang-sha256"]) == 64


@pytest.mark.parametrize("name", [RELEASES[0], HIRADIX[0]])
def test_a_name_that_nobody_gives_lifted_code_is_told_with_the_file(name: str) -> None:
    engine = Rig(at_hand(name)).subject._engine  # type: ignore[attr-defined]
    file = "hiradix_cache" if name in HIRADIX else "unified_radix_cache"
    with pytest.raises(EnvironmentFault, match=rf"self\.of_tomorrow is unknown .*/{file}\.py and"):
        _ = engine.of_tomorrow
