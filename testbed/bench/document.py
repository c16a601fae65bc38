"""The whole result as plain JSON values: kept, shown, compared."""

from pathlib import Path
from typing import Any

import msgspec

from testbed.model.errors import BadInput

FORMAT = 1

Document = dict[str, Any]


def make(
    command: str,
    machine: dict[str, Any],
    load: dict[str, Any],
    parameters: dict[str, Any],
    sections: dict[str, Any],
) -> Document:
    """sections: name -> rows, or one object for the curve. load: before, after, calm."""
    return {
        "format": FORMAT,
        "command": command,
        "machine": machine,
        "load": load,
        "parameters": parameters,
        "sections": sections,
    }


def load(path: Path) -> Document:
    """Read an earlier run. Raises BadInput if it is absent or no benchmark of this format."""
    try:
        found: Any = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise BadInput(f"{path}: is not JSON ({error})") from error
    if not isinstance(found, dict) or "sections" not in found or found.get("format") != FORMAT:
        raise BadInput(
            f"{path}: no benchmark of format {FORMAT}: give a bench.json of this testbed"
        )
    return found
