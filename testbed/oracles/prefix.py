"""What a run with a full log is still evidence of: the steps that every rank recorded whole."""

from dataclasses import replace

from testbed.analysis.sides import named
from testbed.model.events import Raised
from testbed.model.record import RankRecord, RunRecord


def full(record: RunRecord) -> list[RankRecord]:
    """The ranks of which events are missing because their log was full."""
    return [rank for rank in record.ranks if rank.overflow]


def told(record: RunRecord) -> str:
    """That they are missing, in a line; "" where none is full."""
    ranks = full(record)
    if not ranks:
        return ""
    size = max(rank.log_bytes for rank in ranks)
    held = f"{size >> 20} MiB" if size else "its log can hold"
    return (
        f"{named([rank.rank for rank in ranks])} recorded more than {held}, what followed is "
        "missing: have it make fewer calls, or run fewer steps"
    )


def whole_steps(record: RunRecord) -> RunRecord | None:
    """The run up to the step in which the first log was full, as if every rank had been stopped
    there; None where that is the first step, or no log was full.
    """
    steps = [_last_step(rank) for rank in full(record)]
    if not steps or min(steps) <= 0:
        return None
    ranks = tuple(_before(rank, min(steps)) for rank in record.ranks)
    return replace(record, ranks=ranks, ended="deadline")


def _last_step(rank: RankRecord) -> int:
    # The last words of a rank come behind the gap.
    steps = [event.step for event in rank.events if not isinstance(event, Raised)]
    return steps[-1] if steps else -1


def _before(rank: RankRecord, step: int) -> RankRecord:
    events = tuple(event for event in rank.events if event.step < step)
    return RankRecord(rank.rank, "stopped", events)
