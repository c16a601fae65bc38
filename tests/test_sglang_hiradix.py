"""HiRadixCache lifted from sources made up here, in an earlier and a later dialect: no network."""

from pathlib import Path

import pytest

from testbed import subjects
from testbed.model.errors import BadInput
from testbed.subjects.sglang import Unliftable
from tests.fake_hiradix import CONFIGURED, EARLIER, HEAD, LATER, files
from tests.rig import Rig


def checkout(folder: Path, cache: str) -> str:
    """The subject's name of a checkout whose hiradix_cache.py reads ``cache``."""
    for path, text in files(cache).items():
        file = folder / "sglang/srt" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return f"sglang@{folder}:hiradix"


@pytest.fixture
def earlier(tmp_path: Path) -> str:
    return checkout(tmp_path, CONFIGURED + HEAD + EARLIER)


@pytest.fixture
def later(tmp_path: Path) -> str:
    return checkout(tmp_path, CONFIGURED + HEAD + LATER)


def test_an_earlier_source_keeps_the_node_and_a_later_one_what_it_publishes(
    earlier: str, tmp_path: Path
) -> None:
    later = checkout(tmp_path / "later", CONFIGURED + HEAD + LATER)
    for name in (earlier, later):
        rig = Rig(name)
        node = rig.write([1, 2])

        locked = rig.cache.lock_totals()
        rig.step()

        assert locked == [1, 0]
        assert rig.completed() == ["w1"]
        assert node.backed_up
        assert rig.cache.lock_totals() == [0, 0]
        assert rig.subject.pending()["write"] == []


def test_a_split_in_flight_is_told_to_a_source_that_publishes(later: str) -> None:
    rig = Rig(later)
    suffix = rig.write([1, 2, 3], ready_after=1)

    prefix = rig.cache.match_prefix([1, 7]).last_device_node
    rig.step(2)

    assert prefix is suffix.parent
    assert prefix.backed_up
    assert suffix.backed_up
    assert rig.cache.lock_totals() == [0, 0]


def test_a_load_keeps_its_host_copy_though_the_source_does_not_lock_it(earlier: str) -> None:
    rig = Rig(earlier)
    node = rig.load([1, 2], ready_after=1)

    freed = rig.cache.evict_host(2)
    locked = rig.cache.lock_totals()
    rig.step(2)

    assert freed == 0
    assert locked == [1, 1]
    assert rig.completed() == ["l1"]
    assert node.usable_on_device
    assert rig.cache.lock_totals() == [0, 0]


def test_set_up_that_needs_a_server_is_not_run_where_the_testbed_gives_the_value(
    earlier: str,
) -> None:
    rig = Rig(earlier, storage=True)
    node = rig.write([1])

    rig.step()
    under_way = len(rig.subject.pending()["backup"]), node.host_lock_ref
    rig.step(2)

    assert under_way == (1, 1)
    assert rig.subject.pending()["backup"] == []
    assert node.host_lock_ref == 0


def test_an_earlier_sources_revoked_query_gives_its_pages_back(earlier: str) -> None:
    rig = Rig(earlier, storage=True)
    anchor = rig.cache.plant_on_host([1])
    free = rig.cache.host.free_pages

    rig.prefetch(anchor)
    held = rig.cache.host.free_pages, anchor.host_lock_ref
    rig.step()

    assert held == (free - 2, 1)
    assert rig.cache.host.free_pages == free
    assert anchor.host_lock_ref == 0
    assert rig.subject.pending()["prefetch"] == []
    assert rig.controller.prefetch_tokens_occupied == 0


def test_a_write_back_takes_the_lock_that_the_source_never_gave(earlier: str) -> None:
    rig = Rig(earlier)
    node = rig.write([1], ready_after=3)

    rig.subject.calls["write-back"]("")  # type: ignore[attr-defined]

    assert node.backed_up
    assert rig.completed() == ["w1"]
    assert rig.cache.lock_totals() == [0, 0]


def test_only_calls_that_a_source_has_are_offered(earlier: str, tmp_path: Path) -> None:
    later = checkout(tmp_path / "later", CONFIGURED + HEAD + LATER)

    offered = [set(Rig(name).subject.calls) for name in (earlier, later)]  # type: ignore[attr-defined]

    assert offered == [{"write-back", "storage-drain", "prefetch-check"}, {"write-back"}]


@pytest.mark.parametrize(
    ("cache", "missing"),
    [
        (HEAD.replace("check_hicache_events", "poll"), "has no check_hicache_events"),
        (HEAD + LATER.replace("def _track_write", "def _follow_write"), "has no _track_write"),
        ("class RadixCache:\n    pass\n", "has no class HiRadixCache to lift"),
    ],
)
def test_what_cannot_be_lifted_is_named_with_its_file(
    tmp_path: Path, cache: str, missing: str
) -> None:
    name = checkout(tmp_path, cache)

    with pytest.raises(Unliftable, match=rf"hiradix_cache\.py.*{missing}") as told:
        subjects.prepare(name)

    assert "\n" not in str(told.value)


def test_a_source_without_the_file_says_which_is_missing(tmp_path: Path) -> None:
    name = checkout(tmp_path, "")
    (tmp_path / "sglang/srt/mem_cache/hiradix_cache.py").unlink()

    with pytest.raises(Unliftable, match=r"mem_cache\.hiradix_cache has no file to lift from"):
        subjects.prepare(name)


def test_no_other_class_goes_by_that_suffix() -> None:
    with pytest.raises(BadInput, match="is no version number"):
        subjects.check("sglang==0.5.19:lowradix")
