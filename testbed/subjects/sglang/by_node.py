"""Our tree for lifted code that passes node objects around and keeps no ``tree_core``.

The model. A ``NodeFace`` stands for one of our nodes, the same face for the same node as long as
the rank lives, with the attribute names of a release's own tree node. Such code marks nothing as
complete: a transfer is over once it leaves the map of what is pending. ``Pending`` is that map, and
tells our cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from testbed.cache import KVCache, Node, PrefetchKey
from testbed.cache.pools import TokenPool
from testbed.subjects.sglang.seams import TICKET, HostInserted, Seams, Ticket, insert_on_host


class KeyFace(list[int]):
    """A node's key: its blocks, where a release has tokens."""

    @property
    def token_ids(self) -> list[int]:
        """The blocks."""
        return list(self)


class _Component(NamedTuple):
    host_value: torch.Tensor | None


class NodeFace:
    """One of our nodes as lifted code sees its own. Equal only to itself."""

    def __init__(self, faces: "Faces", node: Node) -> None:
        self._faces = faces
        self._node = node
        self.hit_count = 0

    def __repr__(self) -> str:
        return f"NodeFace({self._node!r})"

    @property
    def id(self) -> int:
        """The node's id, which is also its transfers' ACK id."""
        return self._node.id

    @property
    def parent(self) -> "NodeFace | None":
        """The face of the node above; None for the root."""
        return None if self._node.parent is None else self._faces.of(self._node.parent)

    @property
    def key(self) -> KeyFace:
        """Its blocks."""
        return KeyFace(self._node.blocks)

    @property
    def component_data(self) -> tuple[_Component, ...]:
        """Its pages by the number of their component; there is the full one, number 0, alone."""
        return (_Component(self.host_value),)

    @property
    def hash_value(self) -> list[str]:
        """The hash of its last page, the same on every rank."""
        return [self._node.key]

    @property
    def evicted(self) -> bool:
        """Whether its device copy is gone."""
        return self._node.parent is not None and self._node.device_pages is None

    @property
    def backuped(self) -> bool:
        """Whether it has a host copy, whole or in the making."""
        return self._node.host_pages is not None

    @property
    def host_value(self) -> torch.Tensor | None:
        """Token indices of its host copy, int64; None without one."""
        return self._faces.tokens(self._node.host_pages)

    @property
    def write_through_pending_id(self) -> int | None:
        """ACK id of the write that makes its host copy."""
        return self._node.write_ack

    @write_through_pending_id.setter
    def write_through_pending_id(self, ack_id: int | None) -> None:
        # That a write is over our cache is told by ``Pending``.
        if ack_id is not None:
            self._faces.cache.mark_write_through_pending(self._node.id)

    def get_prefix_hash_values(self, node: "NodeFace | None") -> list[str]:
        """Hashes of the nodes from below the root down to ``node``."""
        if node is None or node.parent is None:
            return []
        return [*node.get_prefix_hash_values(node.parent), *node.hash_value]

    def get_last_hash_value(self) -> str:
        """The hash of its last page."""
        return self._node.key

    def protect_host(self) -> None:
        """Lock the path to the root on host: our host copies need their parents'."""
        self._faces.cache.inc_host_lock_ref(self._node.id)

    def release_host(self) -> None:
        """Undo one ``protect_host``."""
        self._faces.cache.dec_host_lock_ref(self._node.id)


class Faces:
    """The faces of one rank's nodes. make: gives a node its face."""

    def __init__(
        self, cache: KVCache, make: "Callable[[Faces, Node], NodeFace]" = NodeFace
    ) -> None:
        self.cache = cache
        self._make = make
        self._made: dict[int, NodeFace] = {}

    def of(self, node: Node) -> NodeFace:
        """The node's face."""
        if node.id not in self._made:
            self._made[node.id] = self._make(self, node)
        return self._made[node.id]

    def of_id(self, node_id: int) -> NodeFace:
        """The face of the node of that id. Raises KeyError for one that is not in the tree."""
        return self.of(self.cache.node(node_id))

    def tokens(self, pages: torch.Tensor | None) -> torch.Tensor | None:
        """Token indices, int64, of host pages."""
        if pages is None:
            return None
        return TokenPool(self.cache.host, self.cache.sizes.page_tokens).tokens_of(pages)


class NodeSeams(Seams):
    """Locks by node object. Give it ``_faces`` before use."""

    _faces: Faces

    def inc_lock_ref(self, node: NodeFace, *_: Any, **__: Any) -> Ticket:
        """Lock the path to the root on device."""
        self._cache.inc_lock_ref(node.id)
        return TICKET

    def dec_lock_ref(self, node: NodeFace, *_: Any, **__: Any) -> Ticket:
        """Undo one lock on device."""
        self._cache.dec_lock_ref(node.id)
        return TICKET

    def inc_host_lock_ref(self, node: NodeFace, *_: Any) -> Ticket:
        """Lock the path to the root on host."""
        self._cache.inc_host_lock_ref(node.id)
        return TICKET

    def dec_host_lock_ref(self, node: NodeFace, *_: Any) -> None:
        """Undo one lock on host."""
        self._cache.dec_host_lock_ref(node.id)

    def _insert_helper_host(
        self, node: NodeFace, key: PrefetchKey, host_indices: torch.Tensor, _hashes: list[str]
    ) -> HostInserted:
        """Pages fetched from storage, below a node."""
        return insert_on_host(self._cache, node.id, key, host_indices)

    def _record_store_event(self, *_: Any, **__: Any) -> None:
        """Events for routers that follow a server's cache: nobody follows ours."""

    def _record_remove_event(self, *_: Any, **__: Any) -> None:
        """Likewise."""


class Pending(dict[int, Any]):
    """Transfers pending, by ACK id. ended: called with the id of one that was taken out."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        super().__init__()
        self._ended = ended

    def pop(self, ack_id: int, *default: Any) -> Any:
        """As a dict's."""
        known = ack_id in self
        taken = super().pop(ack_id, *default)
        if known:
            self._ended(ack_id)
        return taken

    def __delitem__(self, ack_id: int) -> None:
        super().__delitem__(ack_id)
        self._ended(ack_id)


def pending_writes(cache: KVCache) -> Pending:
    """Writes: all nodes that the transfer filled, split since or not, are backed up when it ends.

    Raises KeyError where no such write is in flight.
    """

    def ended(ack_id: int) -> None:
        transfer = cache.transfer("write", ack_id)
        filled = [] if transfer is None else [node.id for node in transfer.nodes]
        cache.finish_write_through(filled, ack_id)

    return Pending(ended)


def pending_loads(cache: KVCache, locks_host: bool) -> Pending:
    """Loads: usable on device when one ends. locks_host: the lifted code itself unlocks the host
    copies; where it does not, ``keep_host_copy`` locked them and this unlocks.
    """

    def ended(ack_id: int) -> None:
        cache.finish_load_back(ack_id)
        if not locks_host:
            cache.dec_host_lock_ref(ack_id)

    return Pending(ended)


def keep_host_copy(cache: KVCache, node_id: int) -> None:
    """Lock the host copy that a load reads from, for code that does not.

    Its own tree never gives up a host copy of a node that is on device, or on its way there; ours
    does, unless it is locked.
    """
    cache.inc_host_lock_ref(node_id)
