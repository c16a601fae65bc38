"""``trace``: requests from a file in the Mooncake JSONL format, one object a line, 512 tokens a
block.

Only the order of the lines counts: ``timestamp`` is checked and not used, since a rank's time is
its steps. A block is a page, whatever ``sizes.page_tokens`` says.
"""

import os
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from testbed.model.errors import BadInput, shortened
from testbed.model.scenario import Scenario
from testbed.workloads import requests
from testbed.workloads.requests import Pace, RequestLine, RequestPlan

BLOCK_TOKENS = 512
TRACES_ENV = "TESTBED_TRACES"

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Block = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class TraceSpec(Pace, frozen=True, kw_only=True):
    """Keys of the ``trace`` workload. path: the file, see ``located``. requests:
    how many of its lines, from the first; null for all."""

    path: str
    kind: Literal["trace"] = "trace"
    requests: int | None = None


class _Line(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: _Count
    hash_ids: Annotated[list[_Block], msgspec.Meta(min_length=1)]


_decode = msgspec.json.Decoder(_Line).decode


def plan(spec: TraceSpec, scenario: Scenario) -> RequestPlan:
    """Read the file. Raises BadInput naming file, line and field."""
    if spec.requests is not None and spec.requests < 1:
        raise BadInput(f"workload.requests is {spec.requests}: give a number from 1 on, or null")
    lines = read(located(spec.path), spec.requests)
    return requests.plan(lines, spec, scenario)


def located(path: str) -> Path:
    """The file as named, from the working directory; else the one of that name in the folder that
    the environment variable TESTBED_TRACES names.
    """
    named, folder = Path(path), os.environ.get(TRACES_ENV)
    # Not Path.exists(): that raises for a name too long.
    return Path(folder) / named.name if folder and not os.path.exists(named) else named


def read(path: Path, limit: int | None = None) -> list[RequestLine]:
    """The first ``limit`` requests of a trace file. Raises BadInput naming file, line and field."""
    if not os.path.isfile(path):  # neither a name that can be none nor a pipe that never ends
        raise BadInput(
            f"trace {shortened(str(path))}: cannot be read (no such file); "
            f"{TRACES_ENV} may name the folder that holds it"
        )
    found: list[RequestLine] = []
    blocks = 0
    try:
        with path.open("rb") as file:
            for at, line in enumerate(islice(file, limit), 1):
                found.append(_request(path, at, line))
                blocks += len(found[-1].blocks)
                if blocks > requests.MAX_BLOCKS:
                    raise BadInput(
                        f"trace {path}, line {at}: more than {requests.MAX_BLOCKS} blocks up to "
                        "here: lower workload.requests"
                    )
    except OSError as error:
        raise BadInput(f"trace {path}: cannot be read ({error.strerror})") from error
    return found


def _request(path: Path, at: int, raw: bytes) -> RequestLine:
    try:
        line = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"trace {path}, line {at}: {error}") from error
    blocks = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) != blocks:
        raise BadInput(
            f"trace {path}, line {at}: hash_ids has {len(line.hash_ids)} blocks, an input_length "
            f"of {line.input_length} needs {blocks}"
        )
    return RequestLine(f"r{at - 1}", tuple(line.hash_ids))
