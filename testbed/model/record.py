"""The RunRecord: everything one case left behind, as data on disk that can be judged again
tomorrow.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from testbed.model.errors import BadInput, brief, naming
from testbed.model.events import CODES, Begin, End, Event, Final, Frame, checked
from testbed.model.scenario import MAX_STEPS, Scenario, from_object, to_object

FORMAT = 1
RECORD_FILE = "record.json.gz"

ExitKind = Literal["done", "raised", "signal", "stopped", "paused"]
EndedHow = Literal["finished", "broken", "deadline", "deadlock"]

_POOL = {"total", "free", "tree", "flight"}


@dataclass(frozen=True)
class RankRecord:
    """One rank's share. exit: done; raised (an exception left the loop); signal (died by
    ``signal``, not by the testbed's hand); stopped (ended by the testbed); paused (so too, but
    somebody's SIGSTOP held it already). stack: Python stack of a rank that was ended; frames: what
    is in it, innermost first. overflow: its log was full and what followed is missing; log_bytes:
    what a log could hold, 0 where that is not known. status: with which a rank ended its own
    process and raised nothing, else -1. left: processes that it had started and that were still
    there when it had ended; the testbed ended them.
    """

    rank: int
    exit: ExitKind
    events: tuple[Event, ...]
    signal: int = 0
    overflow: bool = False
    stack: str = ""
    output: str = ""
    status: int = -1
    log_bytes: int = 0
    frames: tuple[Frame, ...] = ()
    left: int = 0


@dataclass(frozen=True)
class RunRecord:
    """One case. ended: how the controller ended it: ``finished`` (every rank was done),
    ``broken`` (a rank raised or died), ``deadline``, ``deadlock``. promises: what the subject
    says of itself, such as ``{"budget": "batched", "stage-local": true}``. trouble: faults of
    the testbed itself.
    """

    scenario: Scenario
    ranks: tuple[RankRecord, ...]
    ended: EndedHow
    wall_ms: float
    promises: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()


def left_behind(record: RunRecord) -> list[str]:
    """One line for each rank that left processes behind."""
    return [
        f"rank {rank.rank} left {rank.left} process{'es' * (rank.left > 1)} behind: ended"
        for rank in record.ranks
        if rank.left
    ]


def encode(record: RunRecord) -> dict[str, Any]:
    """RunRecord -> plain JSON values."""
    return {
        "format": FORMAT,
        "scenario": to_object(record.scenario),
        "ended": record.ended,
        "wall_ms": round(record.wall_ms, 2),
        "promises": record.promises,
        "versions": record.versions,
        "trouble": list(record.trouble),
        "ranks": [
            {
                "rank": rank.rank,
                "exit": rank.exit,
                "signal": rank.signal,
                "overflow": rank.overflow,
                "stack": rank.stack,
                "output": rank.output,
                "status": rank.status,
                "log_bytes": rank.log_bytes,
                "frames": rank.frames,
                "left": rank.left,
                "events": [[CODES[type(event)], *event] for event in rank.events],
            }
            for rank in record.ranks
        ],
    }


class _RankData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's share as it lies in a file."""

    rank: int
    exit: ExitKind
    events: list[list[Any]]
    signal: int = 0
    overflow: bool = False
    stack: str = ""
    output: str = ""
    status: int = -1
    log_bytes: int = 0
    frames: tuple[Frame, ...] = ()
    left: int = 0


class _RunData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as it lies in a file; the scenario has a reader of its own."""

    format: int
    scenario: dict[str, Any]
    ended: EndedHow
    wall_ms: float
    promises: dict[str, Any]
    versions: dict[str, str]
    trouble: list[str]
    ranks: list[_RankData]


def decode_record(data: Any, where: str) -> RunRecord:
    """Plain JSON values -> RunRecord. Raises BadInput if the format is another or the data are
    broken.
    """
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise BadInput(f"{where}: record format {brief(found)}, this testbed reads {FORMAT}")
    try:
        run = msgspec.convert(data, _RunData)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: not a whole record ({error})") from error
    scenario = from_object(run.scenario, f"{where}: its scenario")
    with naming(where):
        ranks = tuple(_rank(at, share) for at, share in enumerate(run.ranks))
        numbers = [share.rank for share in ranks]
        known = range(scenario.topology.size)
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(known):
            raise BadInput(f"not a whole record (its ranks are {brief(numbers)})")
    return RunRecord(
        scenario=scenario,
        ranks=ranks,
        ended=run.ended,
        wall_ms=run.wall_ms,
        promises=run.promises,
        versions=run.versions,
        trouble=tuple(run.trouble),
    )


def _rank(at: int, data: _RankData) -> RankRecord:
    return RankRecord(
        rank=data.rank,
        exit=data.exit,
        events=tuple(_events(f"ranks[{at}]", data.events)),
        signal=data.signal,
        overflow=data.overflow,
        stack=data.stack,
        output=data.output,
        status=data.status,
        log_bytes=data.log_bytes,
        frames=data.frames,
        left=data.left,
    )


def _events(where: str, listed: list[list[Any]]) -> Iterator[Event]:
    for place, raw in enumerate(listed):
        try:
            event = checked(raw)
            _check(event)
        except ValueError as error:
            raise BadInput(f"not a whole record ({where}.events[{place}]: {error})") from error
        yield event


def _check(event: Event) -> None:
    """What the types of the fields leave open, and every reader takes for granted."""
    if not -1 <= event.step <= MAX_STEPS:
        raise ValueError(f"step is {event.step}")
    if isinstance(event, Begin):
        for held in (*event.write, *event.load):
            if [type(part) for part in held] != [str, bool]:
                raise ValueError(f"{brief(held)} is no [key, ready]")
    if isinstance(event, End | Final) and len(event.locks) != 2:
        raise ValueError(f"locks are {brief(event.locks)}")
    if isinstance(event, Final):
        if len(event.explained) != 2:
            raise ValueError(f"explained are {brief(event.explained)}")
        for pool in (event.device, event.host):
            if set(pool) != _POOL:
                raise ValueError(f"{brief(pool)} are no books of a pool")


def save(record: RunRecord, folder: Path) -> Path:
    """Write the record into ``folder`` (made if absent); returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECORD_FILE
    payload = msgspec.json.encode(encode(record))
    path.write_bytes(gzip.compress(payload, compresslevel=1))
    return path


def load(path: Path) -> RunRecord:
    """Read a record from its file or its folder. Raises BadInput."""
    file = path / RECORD_FILE if path.is_dir() else path
    try:
        data = msgspec.json.decode(gzip.decompress(file.read_bytes()))
    except FileNotFoundError as error:
        raise BadInput(f"{file}: no such record") from error
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"{file}: not a record ({error})") from error
    return decode_record(data, str(file))
