"""How findings speak of ranks: who stands on which side, and what tells callers apart."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.analysis.logical_time import Channel
from testbed.model.verdict import Divergence, Finding, Outcome


def named(ranks: Sequence[int]) -> str:
    """``rank 2`` or ``ranks 0,1``."""
    return f"rank{'s' * (len(ranks) != 1)} {','.join(map(str, ranks))}"


def diverged(step: int, channel: str, ordinal: int, did: Mapping[int, str]) -> Divergence:
    """Ranks that did the same are one side; the largest side is the majority, the rest the
    minority.

    On a tie the side of the lowest rank counts as the majority: ranks are numbered from the leader
    stage on, and the leader stage is what the others follow.
    """
    sides: dict[str, list[int]] = {}
    for rank in sorted(did):
        sides.setdefault(did[rank], []).append(rank)
    majority = max(sides.values(), key=lambda side: (len(side), -side[0]))
    minority = tuple(rank for rank in sorted(did) if rank not in majority)
    told = {str(rank): did[rank] for rank in sorted(did)}
    even = len(majority) == len(minority)
    return Divergence(step, channel, ordinal, told, tuple(majority), minority, even)


def singled_out(
    step: int, channel: str, did: Mapping[int, str], minority: Sequence[int], ordinal: int = -1
) -> Divergence:
    """A divergence whose odd ranks are known from elsewhere than from being fewer."""
    others = tuple(rank for rank in sorted(did) if rank not in minority)
    told = {str(rank): did[rank] for rank in sorted(did)}
    return Divergence(step, channel, ordinal, told, others, tuple(sorted(minority)))


def told_sides(divergence: Divergence) -> str:
    """``rank 2: this; ranks 0,1: that``, the minority first."""
    sides: dict[str, list[int]] = {}
    for rank in (*divergence.minority, *divergence.majority):
        sides.setdefault(divergence.did[str(rank)], []).append(rank)
    return "; ".join(f"{named(ranks)}: {what}" for what, ranks in sides.items())


def difference(oracle: str, divergence: Divergence) -> Finding:
    """The violation that consists in this divergence; its ranks are the minority."""
    summary = f"{divergence.channel}: {told_sides(divergence)}"
    return Finding(
        oracle, Outcome.VIOLATION, divergence.step, divergence.minority, summary, divergence
    )


def unequal(
    oracle: str,
    step: int,
    channel: str,
    ordinal: int,
    did: Mapping[int, str],
    odd: Sequence[int] = (),
) -> Finding:
    """The violation that ranks which had to do the same did not. odd: those known to be wrong; else
    the smaller side is, and of two sides of one size both are named.
    """
    if odd:
        return difference(oracle, singled_out(step, channel, did, odd, ordinal))
    found = difference(oracle, diverged(step, channel, ordinal, did))
    first = found.divergence
    if first is None or not first.even:
        return found
    return replace(found, ranks=(*first.minority, *first.majority))


class Placed(NamedTuple):
    """A finding about one operation: its channel and ordinal."""

    finding: Finding
    at: tuple[Channel, int]


class Breach(NamedTuple):
    """What one rank did against its own books: no other rank takes part in it."""

    step: int
    channel: str
    rank: int
    what: str


def breaches(oracle: str, found: Iterable[Breach], ordinal: int = -1) -> Iterator[Finding]:
    """One violation a step, of all ranks that broke something in it, the earliest step first.

    Its channel is that of the step's first breach; what broke elsewhere is told with its channel.
    """
    by_step: dict[int, list[Breach]] = {}
    for breach in found:
        by_step.setdefault(breach.step, []).append(breach)
    for step, together in sorted(by_step.items()):
        channel = together[0].channel
        did: dict[int, list[str]] = {}
        for each in together:
            elsewhere = "" if each.channel == channel else f"{each.channel}: "
            did.setdefault(each.rank, []).append(f"{elsewhere}{each.what}")
        told = {rank: ", and ".join(parts) for rank, parts in did.items()}
        yield difference(oracle, singled_out(step, channel, told, tuple(told), ordinal))


def told_apart(chains: Sequence[str]) -> list[str]:
    """Of each caller chain (``a>b>c``) what not all chains share: the names that tell them apart.

    Where nothing is left, the chain's innermost function; where that would make two different
    chains look alike, all of them in full.
    """
    split = [chain.split(">") for chain in chains]
    shared = set(split[0]).intersection(*split[1:]) if split else set()
    short = [">".join(name for name in own if name not in shared) or own[-1] for own in split]
    return short if len(set(short)) == len(set(chains)) else list(chains)
