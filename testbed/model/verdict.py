"""What a run came to: findings of the oracles and the one verdict made of them. Pure data."""

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Outcome(str, Enum):
    """How a run can end; ``error`` is the testbed's own failure, never the subject's."""

    OK = "ok"
    DEGRADED = "degraded"
    VIOLATION = "violation"
    DEADLOCK = "deadlock"
    CRASH = "crash"
    HANG = "hang"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Divergence:
    """Where the ranks first differed.

    step: scheduler step. channel: the group, pipe or queue it was seen on. ordinal: index of the
    operation within the channel (0-based; -1 where ordinals make no sense). did: per rank (as a
    string, since JSON keys are strings) what it did there. majority/minority: ranks on either side;
    minority are the ones to look at. Two sides of one size, such as two ranks, have no majority:
    unless something else tells which one is wrong, both are listed, that of the lowest rank as the
    majority, and ``even`` says so.
    """

    step: int
    channel: str
    ordinal: int
    did: dict[str, str]
    majority: tuple[int, ...] = ()
    minority: tuple[int, ...] = ()
    even: bool = False

    @property
    def no_majority(self) -> str:
        """Of an even divergence: why neither side is the one to look at first."""
        return "two ranks, no majority" if len(self.majority) == 1 else "no side is the majority"

    def where(self) -> str:
        """``step 1, write #0``."""
        where = self.channel if self.ordinal < 0 else f"{self.channel} #{self.ordinal}"
        return f"step {self.step}, {where}"

    def sides(self) -> list[str]:
        """``rank 2: nothing``, ``ranks 0,1: w0`` -- the minority first, then smaller sides."""
        sides: dict[str, list[str]] = {}
        for rank, what in self.did.items():
            sides.setdefault(what, []).append(rank)
        few = {str(rank) for rank in self.minority}
        ordered = sorted(sides.items(), key=lambda side: (few.isdisjoint(side[1]), len(side[1])))
        return [
            f"rank{'s' * (len(ranks) > 1)} {','.join(ranks)}: {what}" for what, ranks in ordered
        ]

    def one_line(self) -> str:
        """``step 1, write #0: rank 2: nothing; ranks 0,1: w0``."""
        return f"{self.where()}: {'; '.join(self.sides())}"


@dataclass(frozen=True)
class Finding:
    """One thing an oracle saw broken. ``outcome`` is VIOLATION, or DEGRADED for mere progress."""

    oracle: str
    outcome: Outcome
    step: int
    ranks: tuple[int, ...]
    summary: str
    divergence: Divergence | None = None


@dataclass(frozen=True)
class Verdict:
    """The judgement of one run record.

    ops: counts people compare (sync operations per step and role, messages, bytes, queries,
    stall steps). notes: consequences worth a line (a collateral error, who got stuck behind).
    """

    outcome: Outcome
    summary: str
    oracle: str | None = None
    step: int | None = None
    ranks: tuple[int, ...] = ()
    first_divergence: Divergence | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    ops: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values (enumerations become their strings)."""
        data: dict[str, Any] = _plain(asdict(self))
        data["verdict"] = data.pop("outcome")
        return data


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
