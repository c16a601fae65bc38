"""The folder in which releases are kept: who may write, what an interrupted fetch leaves behind.

The model: an entry is a folder of its own and appears in one rename, whole. What is being fetched
lies in a folder beside the entries that its process holds a lock on as long as it lives; one that
nobody holds was left by a process that was killed, and the next fetch takes it away.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MADE = ".fetching-"
_GATE = ".lock"


def root() -> Path:
    """``$XDG_CACHE_HOME/hicache-testbed``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hicache-testbed"


@contextmanager
def workshop() -> Iterator[Path]:
    """An empty folder inside the cache, removed afterwards; those of the dead are removed before.

    Raises OSError.
    """
    root().mkdir(parents=True, exist_ok=True)
    with _gate():
        _sweep()
        made = Path(tempfile.mkdtemp(prefix=_MADE, dir=root()))
        held = _lock(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if held is not None:
            os.close(held)


@contextmanager
def _gate() -> Iterator[None]:
    # A folder that was made and is not locked yet must not be swept.
    gate = os.open(root() / _GATE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
    finally:
        os.close(gate)


def _sweep() -> None:
    for left in root().glob(f"{_MADE}*"):
        held = _lock(left)
        if held is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder; None where another process does, or it is gone."""
    with suppress(FileNotFoundError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        return held
    return None
