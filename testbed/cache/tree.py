"""The shape of one rank's radix tree: nodes that hold runs of pages, walked and split. No policy,
no bytes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from testbed.model.mixing import mix64

Blocks = tuple[int, ...]

_ROOT_PATH = 0x51ED270B


def path_of(parent_path: int, blocks: Sequence[int]) -> int:
    """Hash of a whole path, from its parent's: the same on every rank, however it was split."""
    path = parent_path
    for block in blocks:
        path = mix64(path, block)
    return path


class Node:
    """A run of blocks below ``parent``, one page each.

    id: counts up on this rank. key: short, the same on every rank, stays with the run's last block.
    device_pages / host_pages: page indices, or None where it has no copy. write_ack / load_ack: id
    of the transfer in flight that fills its host / device pages, or None.
    """

    __slots__ = (
        "blocks",
        "children",
        "device_children",
        "device_pages",
        "digest",
        "host_children",
        "host_lock_ref",
        "host_pages",
        "id",
        "key",
        "last_access",
        "load_ack",
        "lock_ref",
        "parent",
        "path",
        "write_ack",
    )

    def __init__(self, node_id: int, parent: "Node | None", blocks: Blocks) -> None:
        self.id = node_id
        self.parent = parent
        self.blocks = blocks
        self.path: int = _ROOT_PATH if parent is None else path_of(parent.path, blocks)
        self.key = f"{self.path:016x}"[:12]
        self.children: dict[int, Node] = {}
        self.device_pages: torch.Tensor | None = None
        self.host_pages: torch.Tensor | None = None
        self.write_ack: int | None = None
        self.load_ack: int | None = None
        self.lock_ref = 0
        self.host_lock_ref = 0
        self.last_access = 0
        self.device_children = 0
        self.host_children = 0
        self.digest = 0

    def __repr__(self) -> str:
        return f"Node({self.id}, {self.key}, {len(self.blocks)} pages)"

    @property
    def loading(self) -> bool:
        """Its device pages are still being filled from host."""
        return self.load_ack is not None

    @property
    def backed_up(self) -> bool:
        """Its host copy is whole and usable."""
        return self.host_pages is not None and self.write_ack is None

    @property
    def usable_on_device(self) -> bool:
        """Its device copy is whole and usable."""
        return self.device_pages is not None and self.load_ack is None

    def to_root(self) -> Iterator["Node"]:
        """This node and its ancestors, the root left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class Split(NamedTuple):
    """A node was cut in two: ``suffix`` keeps its id and key, ``prefix`` is the new upper part."""

    prefix: Node
    suffix: Node


class Tree:
    """Nodes by id and by path. Node 0 is the root: no pages, never locked."""

    def __init__(self) -> None:
        self.root = Node(0, None, ())
        self.nodes: dict[int, Node] = {0: self.root}
        self._last_id = 0

    def node(self, node_id: int) -> Node:
        """Raises KeyError for a node that is not (or no longer) in the tree."""
        return self.nodes[node_id]

    def walk(self, blocks: Blocks) -> tuple[list[Node], int]:
        """Nodes along ``blocks`` from below the root, the last one perhaps matched in part; and how
        many blocks matched in all."""
        found: list[Node] = []
        at, node = 0, self.root
        while at < len(blocks):
            child = node.children.get(blocks[at])
            if child is None:
                break
            found.append(child)
            common = _common(child.blocks, blocks, at)
            at += common
            if common < len(child.blocks):
                break
            node = child
        return found, at

    def add(self, parent: Node, blocks: Blocks) -> Node:
        """A new leaf below ``parent``."""
        node = Node(self._next_id(), parent, blocks)
        parent.children[blocks[0]] = node
        self.nodes[node.id] = node
        return node

    def remove(self, node: Node) -> None:
        """Take a childless node out of the tree."""
        assert node.parent is not None
        del node.parent.children[node.blocks[0]]
        del self.nodes[node.id]

    def split(self, node: Node, length: int) -> Split:
        """Cut ``node`` after ``length`` blocks. Both parts keep its pages, transfers, locks and
        age."""
        parent = node.parent
        assert parent is not None
        prefix = Node(self._next_id(), parent, node.blocks[:length])
        parent.children[node.blocks[0]] = prefix
        self.nodes[prefix.id] = prefix
        node.parent = prefix
        node.blocks = node.blocks[length:]
        prefix.children[node.blocks[0]] = node
        if node.device_pages is not None:
            prefix.device_pages = node.device_pages[:length]
            node.device_pages = node.device_pages[length:]
            prefix.device_children = 1
        if node.host_pages is not None:
            prefix.host_pages = node.host_pages[:length]
            node.host_pages = node.host_pages[length:]
            prefix.host_children = 1
        prefix.write_ack, prefix.load_ack = node.write_ack, node.load_ack
        prefix.lock_ref, prefix.host_lock_ref = node.lock_ref, node.host_lock_ref
        prefix.last_access = node.last_access
        return Split(prefix, node)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _common(run: Blocks, blocks: Blocks, at: int) -> int:
    if blocks[at : at + len(run)] == run:
        return len(run)
    length = 0
    for mine, theirs in zip(run, blocks[at:], strict=False):
        if mine != theirs:
            break
        length += 1
    return length
