"""Where lifting stops, whatever class is lifted: our tree's locks and books under the names that
lifted code calls.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from testbed.cache import KVCache, PrefetchKey
from testbed.protocols import Groups
from testbed.subjects.sglang.lift import LiftError


class AbsentAttribute(LiftError, AttributeError):
    """Lifted code read an attribute that the testbed does not give it. name: the attribute's."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class StandIn(SimpleNamespace):
    """An object of SGLang's of which lifted code reads a few attributes. A class of our own, so
    that what it lacks is known to be the testbed's lack.
    """


class Ticket:
    """What a lock gives back. Releases turn it into parameters for the unlock; here both are
    nothing.
    """

    delta = 0

    def to_dec_params(self) -> "Ticket":
        """Parameters for the unlock."""
        return self


TICKET = Ticket()


class HostInserted(NamedTuple):
    """What became of fetched pages. prefix_len: tokens of them that the tree did not take."""

    prefix_len: int
    cache_actions: tuple[Any, ...] = ()
    host_insert_dropped: bool = False


class Seams:
    """Base of every lifted object: the methods at which lifting stops.

    Every method here and in a class made of it, unless its name begins with two underscores, is
    ours: lifting leaves the source's own method of that name out.
    """

    _cache: KVCache
    _subject: str
    _file: str

    def __getattr__(self, name: str) -> Any:
        raise AbsentAttribute(
            f"subject {self.__dict__.get('_subject')}: self.{name} is unknown to its class in "
            f"{self.__dict__.get('_file')} and to the testbed; if {name} is yours, it is missing; "
            "if it is SGLang's, tell us",
            name=name,
        )

    def evict_host(self, num_tokens: int, *_: Any, **__: Any) -> int:
        """Free host memory; returns tokens freed."""
        page = self._cache.sizes.page_tokens
        return self._cache.evict_host(-(-num_tokens // page)) * page

    def _apply_cache_action(self, action: Any) -> None:
        raise LiftError(
            f"subject {self._subject}: its code asks for {type(action).__name__}, which our tree "
            "never does"
        )

    def _apply_cache_actions(self, actions: Iterable[Any]) -> None:
        for action in actions:
            self._apply_cache_action(action)


def insert_on_host(
    cache: KVCache, anchor: int, key: PrefetchKey, host_indices: torch.Tensor
) -> HostInserted:
    """Pages fetched from storage go into our tree below ``anchor``. host_indices: token indices,
    int64, of the tokens of ``key``.
    """
    page = cache.sizes.page_tokens
    if not key:
        return HostInserted(0)
    pages = host_indices[::page] // page
    refused = cache.insert_on_host(cache.node(anchor), key.blocks, pages, key.request_id)
    return HostInserted(refused * page)


def cut_by(seams: type[Seams]) -> list[str]:
    """Names of the methods that lifting leaves out because the seams have them."""
    names = {name for each in seams.__mro__[:-1] for name in vars(each)}
    return sorted(name for name in names if not name.startswith("__"))


def place(groups: Groups) -> dict[str, Any]:
    """The rank's place, by the names that releases give its parts."""
    return {
        "tp_group": groups.tp,
        "attn_tp_group": groups.tp,
        "attn_cp_group": groups.cp,
        "pp_group": groups.pp,
        "tp_world_size": groups.topology.tp,
        "pp_rank": groups.at.pp,
        "pp_size": groups.topology.pp,
    }
