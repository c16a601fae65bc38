"""Which ranks' output a failure shows, and how much of it."""

from typing import Literal, get_args

from testbed.model.errors import printable
from testbed.sessions.result import RunResult

Chosen = Literal["first", "failed", "all"]
CHOICES: tuple[Chosen, ...] = get_args(Chosen)
HELP = "whose output a failure shows: the first rank it names, all it names, or all there are"

_LAST_LINES = 40


def outputs(result: RunResult, which: Chosen) -> dict[int, str]:
    """Rank -> the end of what it printed; ranks that printed nothing are left out.

    first: the first rank that the verdict names (the lowest one, where it names none); failed: all
    that it names, and those that raised or died.
    """
    records = {share.rank: share for share in result.record.ranks}
    broken = [rank for rank, one in records.items() if one.exit in ("raised", "signal")]
    named = list(result.verdict.ranks) or broken or sorted(records)[:1]
    ranks = {
        "first": named[:1],
        "failed": sorted({*named, *broken}),
        "all": sorted(records),
    }[which]
    told = {rank: _end(printable(records[rank].output)) for rank in ranks if rank in records}
    return {rank: text for rank, text in told.items() if text}


def _end(text: str) -> str:
    lines = text.rstrip().splitlines()
    left_out = len(lines) - _LAST_LINES
    head = [f"... {left_out} lines before"] if left_out > 0 else []
    return "\n".join(head + lines[-_LAST_LINES:])
