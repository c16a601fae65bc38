"""One rank's tree, pools and transfers."""

import queue
import random
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from testbed.cache import KVCache, Node, Shard, TransferController, shard_of
from testbed.cache.contents import Contents
from testbed.model.events import Block, Complete, Evict, Start, Take
from testbed.model.scenario import Sizes
from testbed.model.topology import Topology
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock, Readiness

SMALL = Sizes(page_tokens=4, layers=2, heads=2, head_dim=2, device_pages=8, host_pages=8)


@dataclass
class Rank:
    """The parts of one rank."""

    clock: Clock
    recorder: ListRecorder
    cache: KVCache
    controller: TransferController

    def write(self, node: Node, key: str = "w0", after: int = 1) -> None:
        assert self.controller.write(node, key, Readiness.steps(after))
        self.cache.inc_lock_ref(node.id)

    def load(self, node: Node, key: str = "l0", after: int = 1) -> None:
        assert self.controller.load(node, key, Readiness.steps(after))
        self.cache.inc_lock_ref(node.id)
        self.cache.inc_host_lock_ref(node.id)

    def finish_write(self, *publish: int) -> None:
        ack = self.controller.ack_write_queue.pop(0)
        ack.finish_event.synchronize()
        self.cache.finish_write_through(publish or ack.node_ids, ack.node_ids[0])
        self.cache.dec_lock_ref(ack.node_ids[0])

    def finish_load(self) -> None:
        ack = self.controller.ack_load_queue.pop(0)
        ack.finish_event.synchronize()
        self.cache.dec_lock_ref(ack.node_ids[0])
        self.cache.dec_host_lock_ref(ack.node_ids[0])
        self.cache.finish_load_back(ack.node_ids[0])

    def insert(self, *blocks: int) -> Node:
        inserted = self.cache.insert(blocks)
        assert inserted is not None
        return inserted.leaf

    def backed_up(self, *blocks: int) -> Node:
        node = self.insert(*blocks)
        self.write(node)
        self.finish_write()
        return node

    def of(self, kind: type) -> list[tuple]:  # type: ignore[type-arg]
        return [event[2:] for event in self.recorder.events if isinstance(event, kind)]


def make(sizes: Sizes = SMALL, sidecars: tuple[str, ...] = ()) -> Rank:
    clock = Clock()
    recorder = ListRecorder(clock)
    cache = KVCache(sizes, shard_of(sizes, Topology(), 0), recorder)
    clock.tick()
    return Rank(clock, recorder, cache, TransferController(cache, clock, recorder, sidecars))


@pytest.fixture
def rank() -> Rank:
    return make()


def books_balance(rank: Rank) -> bool:
    return all(
        pool["free"] + pool["tree"] + pool["flight"] == pool["total"]
        for pool in rank.cache.pages().values()
    )


# Shards and contents


def test_stages_share_the_layers_and_ranks_the_heads_out_among_them() -> None:
    topology = Topology(pp=2, tp=2)
    shards = [shard_of(Sizes(layers=3, heads=4), topology, rank) for rank in range(4)]
    layers = [shard.layers for shard in shards]
    heads = [shard.heads for shard in shards]
    assert layers == [(0,), (0,), (1, 2), (1, 2)]
    assert heads == [(0, 1), (2, 3), (0, 1), (2, 3)]


def test_more_ranks_than_heads_hold_the_same_head() -> None:
    shards = [shard_of(Sizes(heads=2), Topology(tp=4), rank) for rank in range(4)]
    assert [shard.heads for shard in shards] == [(0,), (1,), (0,), (1,)]


def test_contents_follow_from_block_layer_and_head_alone() -> None:
    whole = Contents(Shard((0, 1), (0, 1)), 2).of([7, 9])
    part = Contents(Shard((1,), (0,)), 2).of([9])
    assert torch.equal(whole[1:2, 1:2, 0:1], part)
    assert whole.dtype == torch.int32
    assert len(set(whole.flatten().tolist())) == whole.numel()


def test_bad_pages_counts_pages_and_not_values() -> None:
    contents = Contents(Shard((0, 1), (0, 1)), 2)
    data = contents.of([1, 2, 3])
    data[:, 1] += 1
    assert contents.bad_pages(data, [1, 2, 3]) == 1


# Paths


def test_a_partial_match_splits_the_node_and_keeps_its_key_at_the_end(rank: Rank) -> None:
    leaf = rank.insert(1, 2, 3)
    key = leaf.key
    match = rank.cache.match_prefix((1, 2, 9))
    assert (match.device_pages, match.host_pages) == (2, 0)
    assert match.last_device_node.blocks == (1, 2)
    assert (leaf.blocks, leaf.key) == ((3,), key)


def test_keys_name_the_path_however_it_was_split(rank: Rank) -> None:
    other = make()
    whole = rank.insert(1, 2, 3)
    other.insert(1, 2)
    assert other.insert(1, 2, 3).key == whole.key


def test_only_what_is_missing_is_computed(rank: Rank) -> None:
    rank.insert(1, 2)
    inserted = rank.cache.insert((1, 2, 3))
    assert inserted is not None
    assert [node.blocks for node in inserted.new] == [(3,)]
    assert rank.cache.device.free_pages == SMALL.device_pages - 3


def test_a_page_holds_what_its_block_must(rank: Rank) -> None:
    node = rank.insert(5, 6)
    assert node.device_pages is not None
    data = rank.cache.device.read(node.device_pages)
    assert rank.cache.contents.bad_pages(data, (5, 6)) == 0


# Locks and eviction


def test_locks_are_held_along_the_whole_path(rank: Rank) -> None:
    rank.insert(1)
    leaf = rank.insert(1, 2)
    rank.cache.inc_lock_ref(leaf.id)
    rank.cache.inc_host_lock_ref(leaf.id)
    assert rank.cache.lock_totals() == [2, 2]
    assert rank.cache.lock_weight([leaf.id]) == 2
    rank.cache.dec_lock_ref(leaf.id)
    rank.cache.dec_host_lock_ref(leaf.id)
    assert rank.cache.lock_totals() == [0, 0]


def test_both_parts_of_a_split_node_stay_locked(rank: Rank) -> None:
    leaf = rank.insert(1, 2, 3)
    rank.cache.inc_lock_ref(leaf.id)
    rank.cache.match_prefix((1,))
    assert rank.cache.lock_totals() == [2, 0]
    rank.cache.dec_lock_ref(leaf.id)
    assert rank.cache.lock_totals() == [0, 0]


def test_the_least_recently_used_leaf_goes_first(rank: Rank) -> None:
    old, young = rank.insert(1), rank.insert(2)
    rank.cache.match_prefix((1,))
    assert rank.cache.evict(1) == 1
    assert rank.of(Evict) == [("device", [young.key])]
    assert old.device_pages is not None


def test_a_locked_path_is_not_evicted(rank: Rank) -> None:
    leaf = rank.insert(1, 2)
    rank.cache.inc_lock_ref(leaf.id)
    assert rank.cache.evict(8) == 0
    rank.cache.dec_lock_ref(leaf.id)
    assert rank.cache.evict(8) == 2


def test_a_parent_is_evicted_only_after_its_children(rank: Rank) -> None:
    parent = rank.insert(1)
    leaf = rank.insert(1, 2)
    assert rank.cache.evict(8) == 2
    assert rank.of(Evict) == [("device", [leaf.key, parent.key])]


def test_an_evicted_node_stays_where_it_has_a_copy(rank: Rank) -> None:
    kept, gone = rank.backed_up(1), rank.insert(2)
    rank.cache.evict(8)
    assert rank.cache.match_prefix((1,)).host_pages == 1
    assert kept.id in rank.cache.tree.nodes
    assert gone.id not in rank.cache.tree.nodes


def test_an_insert_evicts_what_it_needs_and_says_when_there_is_no_room(rank: Rank) -> None:
    held = rank.insert(1, 2, 3, 4)
    rank.cache.inc_lock_ref(held.id)
    rank.insert(5, 6, 7)
    assert rank.cache.insert((8, 9, 10)) is not None
    assert rank.cache.insert(tuple(range(20, 25))) is None
    assert held.device_pages is not None
    assert books_balance(rank)


def test_host_eviction_gives_up_copies_of_device_nodes_last(rank: Rank) -> None:
    on_both = rank.backed_up(1)
    rank.backed_up(2)
    rank.cache.inc_lock_ref(on_both.id)
    rank.cache.evict(1)
    rank.cache.match_prefix((2,))
    assert rank.cache.evict_host(1) == 1
    assert on_both.backed_up
    assert rank.cache.evict_host(1) == 1
    assert on_both.id in rank.cache.tree.nodes
    assert not on_both.backed_up


def test_a_host_lock_keeps_the_copy(rank: Rank) -> None:
    node = rank.backed_up(1)
    rank.cache.inc_host_lock_ref(node.id)
    assert rank.cache.evict_host(1) == 0


def test_a_writes_own_ancestors_are_not_given_up_for_it() -> None:
    rank = make(Sizes(device_pages=8, host_pages=2))
    parent = rank.backed_up(1, 2)
    child = rank.insert(1, 2, 3)
    assert not rank.controller.write(child, "w1", Readiness.steps(1))
    assert parent.backed_up


# Transfers


def test_a_backup_is_usable_once_its_write_is_complete(rank: Rank) -> None:
    node = rank.insert(1, 2)
    rank.write(node)
    usable = [node.backed_up]
    rank.finish_write()
    usable.append(node.backed_up)
    assert usable == [False, True]
    assert rank.of(Start) == [("write", "w0", "steps:1")]
    assert rank.of(Complete) == [("write", "w0", True, 0)]


def test_bytes_come_back_as_they_were_written(rank: Rank) -> None:
    node = rank.backed_up(1, 2)
    rank.cache.evict(8)
    rank.insert(3, 4, 5)
    rank.load(node)
    assert node.loading
    rank.finish_load()
    assert rank.of(Complete)[-1] == ("load", "l0", True, 0)
    assert books_balance(rank)


def test_one_load_brings_a_whole_chain_back(rank: Rank) -> None:
    rank.backed_up(1)
    leaf = rank.backed_up(1, 2)
    rank.cache.evict(8)
    rank.load(leaf)
    assert [ack.node_ids for ack in rank.controller.ack_load_queue] == [[leaf.id]]
    rank.finish_load()
    assert rank.cache.match_prefix((1, 2)).device_pages == 2
    assert rank.cache.lock_totals() == [0, 0]


def test_completing_before_the_event_is_ready_is_seen_twice_over(rank: Rank) -> None:
    node = rank.insert(1, 2)
    rank.write(node)
    rank.cache.finish_write_through([node.id], node.id)
    assert rank.of(Complete) == [("write", "w0", False, 2)]


def test_a_lock_let_go_too_early_shows_as_wrong_bytes(rank: Rank) -> None:
    node = rank.insert(1, 2)
    rank.write(node)
    rank.cache.dec_lock_ref(node.id)
    rank.cache.evict(2)
    rank.insert(3, 4)
    rank.controller.ack_write_queue.pop(0).finish_event.synchronize()
    rank.cache.finish_write_through([node.id], node.id)
    assert rank.of(Complete) == [("write", "w0", True, 2)]


def test_a_transfer_that_takes_no_time_has_arrived_though_nobody_asked(rank: Rank) -> None:
    node = rank.insert(1, 2)
    rank.write(node, after=0)

    ack = rank.controller.ack_write_queue.pop(0)
    rank.cache.finish_write_through(ack.node_ids, ack.node_ids[0])

    (complete,) = [event for event in rank.recorder.events if isinstance(event, Complete)]
    assert (complete.ready, complete.bad_pages) == (True, 0)


def test_the_device_moves_bytes_by_itself_when_an_event_is_ready(rank: Rank) -> None:
    node = rank.insert(1)
    rank.write(node)
    transfer = rank.cache.transfer("write", node.id)
    assert transfer is not None
    rank.controller.progress()
    assert not transfer.moved
    rank.clock.tick()
    rank.controller.progress()
    assert transfer.moved


def test_a_split_during_a_write_is_told_and_publishes_both_parts(rank: Rank) -> None:
    told: list[tuple[int, int]] = []
    rank.cache.on_split = lambda old, prefix: told.append((old, prefix))
    node = rank.insert(1, 2, 3)
    rank.write(node)
    prefix = rank.cache.match_prefix((1, 2)).last_device_node
    assert told == [(node.id, prefix.id)]
    rank.finish_write(prefix.id, node.id)
    assert prefix.backed_up
    assert node.backed_up
    assert rank.of(Complete) == [("write", "w0", True, 0)]


def test_a_split_during_a_load_leaves_both_parts_usable(rank: Rank) -> None:
    node = rank.backed_up(1, 2, 3)
    rank.cache.evict(8)
    rank.load(node)
    prefix = rank.cache.match_prefix((1,)).last_device_node
    rank.finish_load()
    assert not prefix.loading
    assert not node.loading
    assert rank.cache.lock_totals() == [0, 0]


def test_the_digest_tells_usable_from_in_flight_and_nothing_else() -> None:
    one, two = make(), make()
    node = one.insert(1, 2)
    two.insert(1, 2)
    assert one.cache.usable_digest() == two.cache.usable_digest()
    one.write(node)
    assert one.cache.usable_digest() == two.cache.usable_digest()
    one.finish_write()
    assert one.cache.usable_digest() != two.cache.usable_digest()


def test_a_digest_returns_when_the_tree_does(rank: Rank) -> None:
    before = rank.cache.usable_digest()
    rank.insert(1, 2)
    rank.cache.evict(8)
    assert rank.cache.usable_digest() == before


def test_keys_that_come_again_are_numbered(rank: Rank) -> None:
    keys = [rank.controller.unique_key("write", "ab") for _ in range(3)]
    assert [*keys, rank.controller.unique_key("load", "ab")] == ["ab", "ab.2", "ab.3", "ab"]


@pytest.mark.parametrize("seed", range(6))
def test_books_locks_and_bytes_stay_right_over_random_work(seed: int) -> None:
    draw = random.Random(seed)
    rank = make(Sizes(page_tokens=1, layers=1, heads=1, device_pages=12, host_pages=10))
    rank.cache.on_split = lambda old, prefix: published(old, prefix)
    pending: dict[int, list[int]] = {}

    def published(old: int, prefix: int) -> None:
        for ids in pending.values():
            if old in ids:
                ids.insert(ids.index(old), prefix)

    for _ in range(400):
        rank.clock.tick()
        rank.controller.progress()
        path = tuple(draw.randrange(3) + 10 * depth for depth in range(draw.randrange(1, 6)))
        match = rank.cache.match_prefix(path)
        node = match.last_host_node
        if match.host_pages and rank.controller.load(node, "l", Readiness.steps(2)):
            rank.cache.inc_lock_ref(node.id)
            rank.cache.inc_host_lock_ref(node.id)
        rank.cache.inc_lock_ref(match.last_device_node.id)
        inserted = rank.cache.insert(path)
        rank.cache.dec_lock_ref(match.last_device_node.id)
        for node in rank.cache.without_backup(inserted.leaf) if inserted else []:
            if not rank.controller.write(node, "w", Readiness.steps(2)):
                break
            rank.cache.inc_lock_ref(node.id)
            pending[node.id] = [node.id]
        while len(rank.controller.ack_write_queue) > draw.randrange(4):
            ids = rank.controller.ack_write_queue[0].node_ids
            rank.finish_write(*pending.pop(ids[0]))
        while len(rank.controller.ack_load_queue) > draw.randrange(3):
            rank.finish_load()
        assert books_balance(rank)
        nodes = rank.cache.tree.nodes.values()
        assert rank.cache.lock_totals() == [
            sum(node.lock_ref for node in nodes),
            sum(node.host_lock_ref for node in nodes),
        ]
    completes = rank.of(Complete)
    assert Counter(complete[0] for complete in completes).keys() == {"write", "load"}
    assert all(ready and bad == 0 for _, _, ready, bad in completes)


# Storage


def test_a_backup_is_acknowledged_the_stated_number_of_steps_later(rank: Rank) -> None:
    rank.controller.backup_after = 2
    operation = rank.controller.write_storage(torch.arange(4), (1,), ["ab"])
    sizes = []
    for _ in range(3):
        rank.controller.progress()
        sizes.append(rank.controller.ack_backup_queue.qsize())
        rank.clock.tick()
    assert sizes == [0, 0, 1]
    assert rank.controller.ack_backup_queue.get().id == operation
    assert rank.of(Take) == [("backup", "ab", 0)]


def test_taking_from_an_empty_queue_without_waiting_raises_silently(rank: Rank) -> None:
    waiting = rank.controller.host_mem_release_queue
    with pytest.raises(queue.Empty):
        waiting.get_nowait()
    assert rank.recorder.events == []


def test_waiting_on_an_empty_queue_is_recorded_before_it_blocks(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blocked(Exception):
        pass

    def blocked() -> None:
        raise Blocked

    monkeypatch.setattr("testbed.cache.transfers.block_for_ever", blocked)
    with pytest.raises(Blocked):
        rank.controller.prefetch_hit_queue.get()
    assert rank.of(Block) == [("prefetch", 0)]


def test_released_host_pages_are_queued_page_by_page_and_counted_in_flight() -> None:
    rank = make(sidecars=("swa",))
    host = rank.controller.mem_pool_host
    tokens, extra = host.alloc(7), host.pool("swa").alloc(4)
    assert tokens is not None
    assert extra is not None
    rank.controller.append_host_mem_release(tokens)
    rank.controller.extra_host_mem_release_queues["swa"].put(extra, key="p0")
    books = rank.controller.host_books()
    assert rank.controller.host_mem_release_queue.qsize() == 2
    assert books == {"total": 8, "free": 7, "flight": 3}


def test_both_ways_to_free_a_sidecar_page_give_it_back() -> None:
    rank = make(sidecars=("swa",))
    host = rank.controller.mem_pool_host
    swa = host.entry_map["swa"].host_pool
    for free in (swa.free, lambda tokens: host.free(tokens, pool="swa")):
        taken = swa.alloc(SMALL.page_tokens)
        assert taken is not None
        free(taken)
        assert swa.available_size() == SMALL.host_pages * SMALL.page_tokens


def test_a_page_freed_twice_unbalances_the_books(rank: Rank) -> None:
    node = rank.backed_up(1)
    assert node.host_pages is not None
    tokens = rank.controller.mem_pool_host.tokens_of(node.host_pages)
    rank.controller.mem_pool_host.free(tokens)
    assert not books_balance(rank)
