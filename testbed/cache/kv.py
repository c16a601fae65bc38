"""KVCache: one rank's radix cache over a device and a host pool. Locks, eviction, residency, books.

The model. A node's pages are on device, on host, or both; a child is never on device without its
parent, nor on host without its parent. Whatever it decides follows from the calls made and from an
access counter, never from a clock, so ranks that make the same calls hold equal trees. Only locks
protect from eviction: a lock released too early is not made good, it shows up as wrong bytes.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch

from testbed.cache.contents import Contents, Shard
from testbed.cache.pools import PagePool
from testbed.cache.tree import Blocks, Node, Tree
from testbed.device import CPU, Device
from testbed.model.events import Complete, Evict
from testbed.model.mixing import mix63
from testbed.model.scenario import Sizes
from testbed.recorder.recorder import Recorder
from testbed.scripted_events import ScriptedEvent

_HEAP_SLACK = 1024


class Match(NamedTuple):
    """What of a path is resident. device_pages / host_pages: pages found on device, and after them
    on host only. The nodes where the two runs end: the root, or the device node again, if a run is
    empty."""

    device_pages: int
    host_pages: int
    last_device_node: Node
    last_host_node: Node


class Inserted(NamedTuple):
    """A path is now on device. new: nodes made for it. leaf: the node its last block is in."""

    new: list[Node]
    leaf: Node


@dataclass
class Transfer:
    """Pages on their way between the pools. source / target: page indices, int64. nodes: those that
    it fills, kept right over splits. moved: the device was told to copy the bytes."""

    queue: str
    key: str
    ack_id: int
    blocks: Blocks
    source: torch.Tensor
    target: torch.Tensor
    finish_event: ScriptedEvent
    nodes: list[Node] = field(default_factory=list)
    moved: bool = False


class KVCache:
    """One rank's share of the hierarchy.

    on_split: called with (old id, id of the new prefix node) when a node is split whose write is in
    flight; the old id stays with the suffix, which is also what stays locked by that id. stamp:
    what a node's age is at an access, the number of the access. on_evict: called with "device" or
    "host" and the node, just before it is evicted there.
    hardware: whose memory the pools are.
    """

    def __init__(
        self, sizes: Sizes, shard: Shard, recorder: Recorder, hardware: Device = CPU
    ) -> None:
        self.sizes = sizes
        self.shard = shard
        self.hardware = hardware
        self.tree = Tree()
        self.device = PagePool(sizes.device_pages, shard, sizes.head_dim, hardware.zeros)
        self.host = PagePool(sizes.host_pages, shard, sizes.head_dim, hardware.host_zeros)
        self.contents = Contents(shard, sizes.head_dim)
        self.on_split: Callable[[int, int], None] | None = None
        self._recorder = recorder
        self._transfers: dict[tuple[str, int], Transfer] = {}
        self.stamp: Callable[[], int] = count(1).__next__
        self.on_evict: list[Callable[[str, Node], None]] = []
        self._digest = 0
        self._device_locks = 0
        self._host_locks = 0
        self._device_heap: list[tuple[int, int]] = []
        self._host_heap: list[tuple[bool, int, int]] = []

    # Paths

    @property
    def root(self) -> Node:
        """The root: node 0, always resident, never locked."""
        return self.tree.root

    def node(self, node_id: int) -> Node:
        """Raises KeyError for a node that is not (or no longer) in the tree."""
        return self.tree.node(node_id)

    def match_prefix(self, blocks: Sequence[int]) -> Match:
        """The longest resident prefix. Splits the node it ends in; an access of the whole path."""
        path = self._touched_path(tuple(blocks))
        on_device = host_only = 0
        last_device = last_host = self.root
        for node in path:
            if node.device_pages is not None and host_only == 0:
                on_device += len(node.blocks)
                last_device = last_host = node
            elif node.device_pages is None and node.backed_up:
                host_only += len(node.blocks)
                last_host = node
            else:
                break
        return Match(on_device, host_only, last_device, last_host)

    def insert(self, blocks: Sequence[int]) -> Inserted | None:
        """Compute whatever of the path is not on device, evicting if need be; None, with nothing
        changed but evictions, if there is no room. Lock the matched part first, else it may be
        evicted for the rest."""
        blocks = tuple(blocks)
        path = self._touched_path(blocks)
        matched = sum(len(node.blocks) for node in path)
        absent = [node for node in path if node.device_pages is None]
        missing = sum(len(node.blocks) for node in absent) + len(blocks) - matched
        if missing and not self._room_on_device(missing):
            return None
        for node in absent:
            self._compute(node)
        leaf = path[-1] if path else self.root
        if matched == len(blocks):
            return Inserted([], leaf)
        new = self.tree.add(leaf, blocks[matched:])
        self._touch(new)
        self._compute(new)
        return Inserted([new], new)

    def plant_on_host(self, blocks: Sequence[int]) -> Node:
        """A new child of the root that is on host only, with right contents: a scenario's set-up.

        Raises ValueError if the path is known already or the host pool is full."""
        blocks = tuple(blocks)
        pages = self.host.take(len(blocks))
        if pages is None or blocks[0] in self.root.children:
            raise ValueError(f"cannot plant {len(blocks)} pages on host: path known or pool full")
        self.host.write(pages, self.contents.of(blocks))
        node = self.tree.add(self.root, blocks)
        self._touch(node)
        self._set_host(node, pages)
        return node

    def without_backup(self, leaf: Node) -> list[Node]:
        """Nodes from the root down to ``leaf`` that have no host copy, nor one in the making."""
        lacking = [node for node in leaf.to_root() if node.host_pages is None]
        lacking.reverse()
        return lacking

    def _touched_path(self, blocks: Blocks) -> list[Node]:
        path, matched = self.tree.walk(blocks)
        covered = sum(len(node.blocks) for node in path)
        if covered > matched:
            path[-1] = self._split(path[-1], len(path[-1].blocks) - (covered - matched))
        for node in path:
            self._touch(node)
        return path

    def _split(self, node: Node, length: int) -> Node:
        prefix, suffix = self.tree.split(node, length)
        self._device_locks += prefix.lock_ref
        self._host_locks += prefix.host_lock_ref
        for queue, ack_id in (("write", prefix.write_ack), ("load", prefix.load_ack)):
            transfer = None if ack_id is None else self._transfers.get((queue, ack_id))
            if transfer is not None:
                transfer.nodes.append(prefix)
        self._refresh(prefix)
        self._refresh(suffix)
        if prefix.write_ack is not None and self.on_split is not None:
            self.on_split(suffix.id, prefix.id)
        return prefix

    def _touch(self, node: Node) -> None:
        node.last_access = self.stamp()
        self._offer(node)

    def _compute(self, node: Node) -> None:
        pages = self.device.take(len(node.blocks))
        assert pages is not None, "room was made before"
        self.device.write(pages, self.contents.of(node.blocks))
        self._set_device(node, pages)

    # Locks

    def inc_lock_ref(self, node_id: int) -> None:
        """Keep the path from this node to the root on device. Raises KeyError if it is unknown."""
        for node in self.node(node_id).to_root():
            node.lock_ref += 1
            self._device_locks += 1

    def dec_lock_ref(self, node_id: int) -> None:
        """Undo one ``inc_lock_ref``. One too many goes below zero and shows in the totals."""
        for node in self.node(node_id).to_root():
            node.lock_ref -= 1
            self._device_locks -= 1
            self._offer(node)

    def inc_host_lock_ref(self, node_id: int) -> None:
        """Keep the path from this node to the root on host. Raises KeyError if it is unknown."""
        for node in self.node(node_id).to_root():
            node.host_lock_ref += 1
            self._host_locks += 1

    def dec_host_lock_ref(self, node_id: int) -> None:
        """Undo one ``inc_host_lock_ref``."""
        for node in self.node(node_id).to_root():
            node.host_lock_ref -= 1
            self._host_locks -= 1
            self._offer(node)

    def lock_totals(self) -> list[int]:
        """Sums of [lock_ref, host_lock_ref] over all nodes in the tree."""
        return [self._device_locks, self._host_locks]

    def lock_weight(self, node_ids: Iterable[int]) -> int:
        """What one lock on each of these nodes adds to a total; nodes gone from the tree add
        nothing."""
        nodes = (self.tree.nodes.get(node_id) for node_id in node_ids)
        return sum(1 for node in nodes if node is not None for _ in node.to_root())

    # Eviction

    def evict(self, pages: int) -> int:
        """Free at least ``pages`` device pages, least recently used leaves first; returns how many
        were freed. A node with a usable host copy stays on host; any other leaves the tree."""
        freed, keys = 0, []
        while freed < pages and self._device_heap:
            last_access, node_id = heapq.heappop(self._device_heap)
            node = self.tree.nodes.get(node_id)
            if node is None or node.last_access != last_access or not _evictable(node):
                continue
            freed += len(node.blocks)
            keys.append(node.key)
            for look in self.on_evict:
                look("device", node)
            self._drop_device(node)
        if keys:
            self._recorder.add(Evict, "device", keys)
        return freed

    def evict_host(self, pages: int) -> int:
        """Free at least ``pages`` host pages; returns how many were freed. Leaves that are on host
        only leave the tree first, then copies of nodes that are on device too are given up."""
        freed, keys = 0, []
        while freed < pages and self._host_heap:
            on_device, last_access, node_id = heapq.heappop(self._host_heap)
            node = self.tree.nodes.get(node_id)
            stale = node is None or (on_device, last_access) != _host_age(node)
            if node is None or stale or not _host_evictable(node):
                continue
            freed += len(node.blocks)
            keys.append(node.key)
            for look in self.on_evict:
                look("host", node)
            self._drop_host(node)
        if keys:
            self._recorder.add(Evict, "host", keys)
        return freed

    def evictable(self, where: str) -> list[Node]:
        """Nodes that eviction on "device" or "host" could take now, in no order."""
        may_go = _evictable if where == "device" else _host_evictable
        return [node for node in self.tree.nodes.values() if may_go(node)]

    def _room_on_device(self, pages: int) -> bool:
        return _room(self.device, pages, self.evict)

    def _room_on_host(self, pages: int) -> bool:
        return _room(self.host, pages, self.evict_host)

    def _drop_device(self, node: Node) -> None:
        assert node.device_pages is not None
        self.device.free(node.device_pages)
        self._set_device(node, None)
        if not node.backed_up:
            if node.host_pages is not None:
                self.host.free(node.host_pages)
                self._set_host(node, None)
            self._remove(node)

    def _drop_host(self, node: Node) -> None:
        assert node.host_pages is not None
        self.host.free(node.host_pages)
        self._set_host(node, None)
        if node.device_pages is None:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        self.tree.remove(node)
        self._device_locks -= node.lock_ref
        self._host_locks -= node.host_lock_ref
        self._digest ^= node.digest
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        # Heaps keep stale entries: whatever is popped is checked against the node as it is then.
        if _evictable(node):
            heapq.heappush(self._device_heap, (node.last_access, node.id))
        if _host_evictable(node):
            heapq.heappush(self._host_heap, (*_host_age(node), node.id))
        if len(self._device_heap) + len(self._host_heap) > 8 * len(self.tree.nodes) + _HEAP_SLACK:
            self._forget_stale()

    def _forget_stale(self) -> None:
        nodes = self.tree.nodes.values()
        self._device_heap = [(node.last_access, node.id) for node in nodes if _evictable(node)]
        self._host_heap = [(*_host_age(node), node.id) for node in nodes if _host_evictable(node)]
        heapq.heapify(self._device_heap)
        heapq.heapify(self._host_heap)

    # Transfers

    def begin_write(self, node: Node, key: str, event: ScriptedEvent) -> Transfer | None:
        """Allocate host pages for the node's write to host, evicting on host if need be; None if
        there is no room. Raises ValueError if the node is not on device or has a host copy already.
        """
        if node.device_pages is None or node.host_pages is not None:
            raise ValueError(f"{node} cannot be written: not on device, or on host already")
        # Its ancestors' copies must not be given up to make room for its own.
        parent = node.parent or self.root
        self.inc_host_lock_ref(parent.id)
        room = self._room_on_host(len(node.blocks))
        self.dec_host_lock_ref(parent.id)
        target = self.host.take(len(node.blocks)) if room else None
        if target is None:
            return None
        transfer = Transfer(
            "write", key, node.id, node.blocks, node.device_pages, target, event, [node]
        )
        self._transfers["write", node.id] = transfer
        node.write_ack = node.id
        self._set_host(node, target)
        return transfer

    def begin_load(self, node: Node, key: str, event: ScriptedEvent) -> Transfer | None:
        """Allocate device pages for this node and its ancestors that are on host only, evicting on
        device if need be; None if there is no room. Raises ValueError if a node of them is not on
        host."""
        chain = [step for step in node.to_root() if step.device_pages is None]
        chain.reverse()
        if not chain or any(not step.backed_up for step in chain):
            raise ValueError(f"{node} cannot be loaded: on device already, or not on host")
        blocks = tuple(block for step in chain for block in step.blocks)
        above = chain[0].parent or self.root
        self.inc_lock_ref(above.id)
        room = self._room_on_device(len(blocks))
        self.dec_lock_ref(above.id)
        target = self.device.take(len(blocks)) if room else None
        if target is None:
            return None
        source = torch.cat([step.host_pages for step in chain if step.host_pages is not None])
        transfer = Transfer("load", key, node.id, blocks, source, target, event, chain)
        self._transfers["load", node.id] = transfer
        at = 0
        for step in chain:
            step.load_ack = node.id
            self._set_device(step, target[at : at + len(step.blocks)])
            at += len(step.blocks)
        return transfer

    def insert_on_host(
        self, anchor: Node, blocks: Sequence[int], pages: torch.Tensor, key: str
    ) -> int:
        """Pages that came from storage, below ``anchor``, for the request ``key``: what of them is
        not in the tree yet becomes a node on host. Checks its bytes, records Complete.

        blocks: their blocks. pages: host page indices, int64, one a block. Returns how many of them
        the tree did not take, from the first on: it has these blocks already, or has no host copy
        to hang the rest below. The caller frees those.
        """
        blocks = tuple(blocks)
        above = tuple(block for step in reversed(list(anchor.to_root())) for block in step.blocks)
        path, matched = self.tree.walk(above + blocks)
        if matched < sum(len(step.blocks) for step in path):
            path = self._touched_path(above + blocks[: matched - len(above)])
        known = matched - len(above)
        bad = self.contents.bad_pages(self.host.read(pages), blocks)
        self._recorder.add(Complete, "prefetch", key, True, bad)
        parent = path[-1] if path else self.root
        if known == len(blocks) or not (parent is self.root or parent.backed_up):
            return len(blocks)
        node = self.tree.add(parent, blocks[known:])
        self._touch(node)
        self._set_host(node, pages[known:])
        return known

    def transfer(self, queue: str, ack_id: int) -> Transfer | None:
        """The transfer in flight under this ACK id, if there is one."""
        return self._transfers.get((queue, ack_id))

    def move(self, transfer: Transfer) -> None:
        """Copy the transfer's bytes, or have the device do it; once only."""
        if transfer.moved:
            return
        transfer.moved = True
        device, host = self.device.data, self.host.data
        into, out_of = (host, device) if transfer.queue == "write" else (device, host)
        self.hardware.copy_pages(into, transfer.target, out_of, transfer.source)

    def mark_write_through_pending(self, node_id: int) -> None:
        """The node's host copy is not usable until ``finish_write_through``. Already so since its
        write began; for subjects that say it themselves. Raises KeyError for an unknown node."""
        node = self.node(node_id)
        if node.write_ack is None:
            node.write_ack = node_id
            self._refresh(node)

    def finish_write_through(self, node_ids: Sequence[int], ack_id: int) -> None:
        """These nodes are backed up: the write under ``ack_id`` is complete. Checks its bytes,
        records Complete. Raises KeyError if no such write is in flight."""
        transfer = self._transfers.pop(("write", ack_id))
        self._complete(transfer, self.host)
        for node_id in node_ids:
            node = self.tree.nodes.get(node_id)
            if node is not None:
                node.write_ack = None
                self._refresh(node)

    def finish_load_back(self, node_id: int) -> None:
        """The load under this ACK id is complete: its nodes are usable on device. Checks its bytes,
        records Complete. Raises KeyError if no such load is in flight."""
        transfer = self._transfers.pop(("load", node_id))
        self._complete(transfer, self.device)
        for node in transfer.nodes:
            node.load_ack = None
            if self.tree.nodes.get(node.id) is node:
                self._refresh(node)

    def _complete(self, transfer: Transfer, pool: PagePool) -> None:
        # The pages it filled, not the node's: the node may be gone if its lock went too early.
        bad = self.contents.bad_pages(pool.read(transfer.target), transfer.blocks)
        self._recorder.add(
            Complete, transfer.queue, transfer.key, transfer.finish_event.observed, bad
        )

    # Residency and books

    def usable_digest(self) -> int:
        """63-bit digest of which nodes are usable on device and on host; equal where trees are."""
        return self._digest

    def pages(self) -> dict[str, dict[str, int]]:
        """Books of both pools, in pages: {"device": {"total", "free", "tree", "flight"}, "host":
        {...}}. flight: held by nodes whose transfer into that pool is not complete."""
        device = {
            "total": self.device.size,
            "free": self.device.room,
            "tree": 0,
            "flight": 0,
        }
        host = {"total": self.host.size, "free": self.host.room, "tree": 0, "flight": 0}
        for node in self.tree.nodes.values():
            if node.device_pages is not None:
                device["flight" if node.loading else "tree"] += len(node.device_pages)
            if node.host_pages is not None:
                host["tree" if node.backed_up else "flight"] += len(node.host_pages)
        return {"device": device, "host": host}

    def _set_device(self, node: Node, pages: torch.Tensor | None) -> None:
        assert node.parent is not None
        node.parent.device_children += (pages is not None) - (node.device_pages is not None)
        node.device_pages = pages
        if pages is None:
            node.load_ack = None
        self._refresh(node)
        self._offer(node.parent)

    def _set_host(self, node: Node, pages: torch.Tensor | None) -> None:
        assert node.parent is not None
        node.parent.host_children += (pages is not None) - (node.host_pages is not None)
        node.host_pages = pages
        if pages is None:
            node.write_ack = None
        self._refresh(node)
        self._offer(node.parent)

    def _refresh(self, node: Node) -> None:
        usable = 2 * node.usable_on_device + node.backed_up
        digest = mix63(node.path, usable) if usable else 0
        self._digest ^= node.digest ^ digest
        node.digest = digest
        self._offer(node)


def _room(pool: PagePool, pages: int, evict: Callable[[int], int]) -> bool:
    if pool.refuses(pages):
        return False
    short = pages - pool.room
    return short <= 0 or evict(short) >= short


def _evictable(node: Node) -> bool:
    return (
        node.device_pages is not None
        and node.device_children == 0
        and node.lock_ref <= 0
        and (node.backed_up or not node.children)
    )


def _host_evictable(node: Node) -> bool:
    return node.backed_up and node.host_children == 0 and node.host_lock_ref <= 0


def _host_age(node: Node) -> tuple[bool, int]:
    return node.device_pages is not None, node.last_access
