"""The RunRecord: everything one case left behind, as data on disk that can be judged again
tomorrow.
"""

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from testbed.errors import BadInput
from testbed.scenario import Scenario, from_object, to_object
from testbed.trace.events import CODES, Event, decode

FORMAT = 1
RECORD_FILE = "record.json.gz"

ExitKind = Literal["done", "raised", "signal", "stopped", "paused"]


@dataclass(frozen=True)
class RankRecord:
    """One rank's share. exit: done; raised (an exception left the loop); signal (died by
    ``signal``, not by the testbed's hand); stopped (ended by the testbed); paused (so too, but
    somebody's SIGSTOP held it already). stack: Python stack of a rank that was ended. overflow:
    the recorder was full and dropped events.
    """

    rank: int
    exit: ExitKind
    events: tuple[Event, ...]
    signal: int = 0
    overflow: bool = False
    stack: str = ""
    output: str = ""


@dataclass(frozen=True)
class RunRecord:
    """One case. ended: how the controller ended it: ``finished`` (every rank was done),
    ``broken`` (a rank raised or died), ``deadline``, ``deadlock``. promises: what the subject
    says of itself, such as ``{"budget": "batched", "stage-local": true}``. trouble: faults of
    the testbed itself.
    """

    scenario: Scenario
    ranks: tuple[RankRecord, ...]
    ended: Literal["finished", "broken", "deadline", "deadlock"]
    wall_ms: float
    promises: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()


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
                "events": [[CODES[type(event)], *event] for event in rank.events],
            }
            for rank in record.ranks
        ],
    }


def decode_record(data: dict[str, Any], where: str) -> RunRecord:
    """Plain JSON values -> RunRecord. Raises BadInput if the format is another or the data are
    broken.
    """
    if data.get("format") != FORMAT:
        raise BadInput(
            f"{where}: record format {data.get('format')!r}, this testbed reads {FORMAT}"
        )
    try:
        ranks = tuple(
            RankRecord(**{**rank, "events": tuple(decode(raw) for raw in rank["events"])})
            for rank in data["ranks"]
        )
        return RunRecord(
            scenario=from_object(data["scenario"], where),
            ranks=ranks,
            ended=data["ended"],
            wall_ms=data["wall_ms"],
            promises=data["promises"],
            versions=data["versions"],
            trouble=tuple(data["trouble"]),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise BadInput(f"{where}: not a whole record ({error!r})") from error


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
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise BadInput(f"{file}: not a record ({error})") from error
    return decode_record(data, str(file))
