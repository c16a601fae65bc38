"""What the bytes of a page must be: a pure function of (block, global layer, global head).

So every rank can verify its own shard of every page without asking another rank.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from testbed.model.mixing import ODD, TURN, mix64
from testbed.model.scenario import Sizes
from testbed.model.topology import Topology


class Shard(NamedTuple):
    """The global layers and heads whose bytes one rank holds."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]


def shard_of(sizes: Sizes, topology: Topology, rank: int) -> Shard:
    """Stage pp holds a contiguous run of layers, tp rank a contiguous run of heads; where there are
    fewer than holders, several hold the same one. Context-parallel ranks hold the same shard."""
    at = topology.coords(rank)
    return Shard(_share(sizes.layers, topology.pp, at.pp), _share(sizes.heads, topology.tp, at.tp))


def _share(total: int, holders: int, index: int) -> tuple[int, ...]:
    if total < holders:
        return (index % total,)
    return tuple(range(index * total // holders, (index + 1) * total // holders))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


class Contents:
    """Expected bytes of one rank's pages. Blocks are integers below 2**63."""

    def __init__(self, shard: Shard, head_dim: int) -> None:
        salts = [
            _signed(mix64(layer, head, place))
            for layer in shard.layers
            for head in shard.heads
            for place in range(head_dim)
        ]
        self._salts = torch.tensor(salts, dtype=torch.int64).view(
            len(shard.layers), 1, len(shard.heads), head_dim
        )

    def of(self, blocks: Sequence[int]) -> torch.Tensor:
        """int32 of shape (layers_local, len(blocks), heads_local, head_dim)."""
        ids = torch.tensor(blocks, dtype=torch.int64).view(1, -1, 1, 1)
        mixed = (ids ^ self._salts) * _signed(ODD)
        mixed = (mixed ^ (mixed >> 29)) * _signed(TURN)
        return (mixed >> 32).to(torch.int32)

    def bad_pages(self, data: torch.Tensor, blocks: Sequence[int]) -> int:
        """How many pages of ``data`` (as ``of`` shapes it) do not hold what they must."""
        want = self.of(blocks)
        if torch.equal(data, want):
            return 0
        return int((data != want).any(3).any(2).any(0).sum())
