"""Which rank sits where: (pp, cp, tp) coordinates, rank numbers and process groups. Pure.

Rank numbers run stage by stage, inside a stage context-parallel position by position, inside that
by tensor-parallel rank: ``rank = pp_rank * (cp * tp) + cp_rank * tp + tp_rank``, the order in which
SGLang lays out its ranks.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec

from testbed.model.errors import BadInput, brief

MAX_RANKS = 256

_ON_NCCL = "@nccl"
# What can be seen and is no space.
_FIRST_LETTER, _LAST_LETTER = ord("!"), ord("~")


class Coords(NamedTuple):
    """Position of one rank: pipeline stage, context-parallel and tensor-parallel index."""

    pp: int
    cp: int
    tp: int


class GroupSpec(NamedTuple):
    """A process group: its readable name (the *channel* in reports) and its global ranks."""

    name: str
    ranks: tuple[int, ...]

    def on_nccl(self) -> "GroupSpec":
        """The group of the same ranks over NCCL: a channel of its own, whose name says so."""
        return GroupSpec(self.name + _ON_NCCL, self.ranks)


def has_tags(channel: str) -> bool:
    """Whether messages of a group of that name are told apart by tags. NCCL ignores tags: there the
    n-th receive from a rank takes the n-th message that this rank sent, whatever its tag.
    """
    return not channel.endswith(_ON_NCCL)


def told_tag(tag: int) -> str:
    """A message's tag as people read it: four letters that make up the number (``'kvAg'``), else
    the number.
    """
    if tag.bit_length() in range(25, 33):
        letters = tag.to_bytes(4, "big")
        if all(_FIRST_LETTER <= letter <= _LAST_LETTER for letter in letters):
            return f"'{letters.decode()}'"
    return str(tag)


def without_backend(channel: str) -> str:
    """The group's name in the topology: ``pp[tp0]`` of ``pp[tp0]@nccl``."""
    return channel.removesuffix(_ON_NCCL)


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """pp stages x tp ranks x cp ranks. Raises BadInput for sizes below one or past MAX_RANKS."""

    pp: int = 1
    tp: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        for axis in ("pp", "tp", "cp"):
            size = getattr(self, axis)
            if size < 1:
                raise BadInput(f"topology.{axis} is {brief(size)}: give a whole number from 1 on")
        if self.size > MAX_RANKS:
            told = brief(f"pp{self.pp}tp{self.tp}cp{self.cp}")
            raise BadInput(f"topology {told} has too many ranks: at most {MAX_RANKS} are run")

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """``"pp2tp2"`` or ``"pp2tp1cp2"`` -> Topology. Raises BadInput."""
        match = re.fullmatch(r"pp(\d{1,9})tp(\d{1,9})(?:cp(\d{1,9}))?", text)
        if match is None:
            raise BadInput(f"topology {brief(text)}: write it as pp2tp2 or pp2tp1cp2")
        return cls(int(match[1]), int(match[2]), int(match[3] or 1))

    def __str__(self) -> str:
        return f"pp{self.pp}tp{self.tp}" + (f"cp{self.cp}" if self.cp > 1 else "")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.pp * self.tp * self.cp

    def check_fits(
        self, world: int, oversubscribe: bool, remedy: str = "raise its world, or oversubscribe it"
    ) -> None:
        """Raise BadInput if a fleet of ``world`` hosts has too few of them for this topology.

        remedy: what to do, in the words of the place where the user gave the world.
        """
        if self.size > world and not oversubscribe:
            raise BadInput(
                f"topology {self} needs {self.size} ranks, the fleet has {world}: {remedy}"
            )

    def rank(self, pp: int, cp: int, tp: int) -> int:
        """Global rank of a position."""
        return (pp * self.cp + cp) * self.tp + tp

    def coords(self, rank: int) -> Coords:
        """Position of a global rank."""
        rest, tp = divmod(rank, self.tp)
        pp, cp = divmod(rest, self.cp)
        return Coords(pp, cp, tp)

    def stage(self, pp: int) -> range:
        """Global ranks of one pipeline stage."""
        width = self.cp * self.tp
        return range(pp * width, (pp + 1) * width)

    @property
    def leaders(self) -> range:
        """Global ranks of the leader stage (pp_rank 0)."""
        return self.stage(0)

    def tp_group(self, rank: int) -> GroupSpec:
        """The tensor-parallel group that ``rank`` belongs to."""
        at = self.coords(rank)
        name = f"tp[pp{at.pp}cp{at.cp}]" if self.cp > 1 else f"tp[pp{at.pp}]"
        return GroupSpec(name, tuple(self.rank(at.pp, at.cp, tp) for tp in range(self.tp)))

    def cp_group(self, rank: int) -> GroupSpec:
        """The context-parallel group that ``rank`` belongs to."""
        at = self.coords(rank)
        name = f"cp[pp{at.pp}tp{at.tp}]"
        return GroupSpec(name, tuple(self.rank(at.pp, cp, at.tp) for cp in range(self.cp)))

    def pp_group(self, rank: int) -> GroupSpec:
        """The pipeline that ``rank`` belongs to, first stage first."""
        at = self.coords(rank)
        name = f"pp[cp{at.cp}tp{at.tp}]" if self.cp > 1 else f"pp[tp{at.tp}]"
        return GroupSpec(name, tuple(self.rank(pp, at.cp, at.tp) for pp in range(self.pp)))

    @cached_property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Every group with two members or more, each once, in one order for all ranks."""

        def every() -> Iterator[GroupSpec]:
            for of in (self.tp_group, self.cp_group, self.pp_group):
                yield from dict.fromkeys(of(rank) for rank in range(self.size))

        return tuple(group for group in every() if len(group.ranks) > 1)
