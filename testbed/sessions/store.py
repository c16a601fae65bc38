"""Where the results of a session are kept. A session is a command, or a whole pytest run:

    <root>/<time>/runs/<case id>[.n]/record.json.gz   what happened
    <root>/<time>/runs/<case id>[.n]/verdict.json     how it was judged then
    <root>/latest                                     symbolic link to the newest session

Only the newest ``KEEP_DEFAULT`` sessions of a root stay, or as many as the environment variable
``TESTBED_KEEP`` says (``all``: every one); one that a process has open is never removed.
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.model.errors import BadInput

DEFAULT_ROOT = Path("reports/out")
LATEST = "latest"
VERDICT_FILE = "verdict.json"
KEEP_VARIABLE = "TESTBED_KEEP"
KEEP_DEFAULT = 20
_NAME_LIMIT = 180
"""Bytes: a file system allows 255, and counts are put behind the name."""
_SESSION = re.compile(r"\d{8}-\d{6}(\.\d+)?")


class RunStore:
    """The folder of one session. Made on first use, so that a session without runs leaves nothing.

    root: parent of all sessions. name: the session's folder, for a process that joins a session
    which another one named (pytest-xdist workers); by default a new one named after the time.
    """

    def __init__(self, root: Path, name: str = "") -> None:
        self._root = root
        self._folder = root / name if name else None
        self._is_latest = False
        self._lock: int | None = None

    @property
    def folder(self) -> Path:
        """The session's folder, made when first asked for."""
        if self._folder is None:
            self._folder = _new_folder(self._root / time.strftime("%Y%m%d-%H%M%S"))
            self._hold()
        return self._folder

    def close(self) -> None:
        """Let go of the folder: it may be pruned from now on. The process's end does it, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> None:
        if self._lock is None and self._folder is not None:
            self._lock = _locked(self._folder, fcntl.LOCK_SH)

    def claim(self, case_id: str) -> Path:
        """A new folder for one run of that case; later runs of it get ``.2``, ``.3`` and so on.

        The first one makes this session the latest.
        """
        claimed = _new_folder(self.folder / "runs" / file_name(case_id))
        if not self._is_latest:
            self._hold()  # a session that another process named
            self._point_latest()
            prune(self._root, keep_sessions())
        return claimed

    def drop_if_empty(self) -> None:
        """Remove the session's folder if nothing was kept in it."""
        if self._folder is not None and self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _point_latest(self) -> None:
        # Renamed into place: two sessions that start together each leave a whole link.
        link = self._root / f".{LATEST}.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(self.folder.name)
        os.replace(link, self._root / LATEST)
        self._is_latest = True


def keep_sessions() -> int | None:
    """How many sessions stay; None for all. Raises BadInput if the setting is no such number."""
    given = os.environ.get(KEEP_VARIABLE, "").strip()
    if given == "all":
        return None
    if not given:
        return KEEP_DEFAULT
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise BadInput(f"{KEEP_VARIABLE} is {given!r}: give a whole number from 1 on, or all")
    return int(given)


def prune(root: Path, keep: int | None) -> None:
    """Remove all but the newest ``keep`` sessions, except those in use: see ``in_use``.

    What cannot be removed stays; the next session tries again.
    """
    if keep is None:
        return
    for old in sessions(root)[:-keep]:
        lock = _locked(old, fcntl.LOCK_EX)
        if lock is not None:
            # Renamed first: nobody finds half a session, and of two that prune one gets it.
            doomed = old.with_name(f".{old.name}.pruned")
            try:
                old.rename(doomed)
            except OSError:
                continue
            finally:
                os.close(lock)
            shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def in_use(run: Path) -> Iterator[None]:
    """Keep the session of a recorded run from being pruned meanwhile."""
    session = next(
        (above for above in run.resolve().parents if _SESSION.fullmatch(above.name)), None
    )
    lock = _locked(session, fcntl.LOCK_SH) if session is not None else None
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def sessions(root: Path) -> list[Path]:
    """The folders of all sessions, oldest first."""
    there = root.iterdir() if root.is_dir() else ()
    return sorted(
        (path for path in there if _SESSION.fullmatch(path.name) and path.is_dir()), key=_age
    )


def _age(session: Path) -> tuple[str, int]:
    name, _, number = session.name.partition(".")
    return name, int(number or 1)


def _locked(folder: Path, how: int) -> int | None:
    """A lock on the folder, as a file descriptor that no child inherits; None if others hold it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def file_name(case_id: str) -> str:
    """The case id with whatever does not belong into a file name replaced, cut to a sane length."""
    fit = re.sub(r"[^\w.=@+-]", "_", case_id).encode(errors="replace")[:_NAME_LIMIT]
    return fit.decode(errors="ignore")


def _new_folder(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    candidate, count = path, 1
    while True:
        try:
            candidate.mkdir()
            return candidate
        except FileExistsError:
            count += 1
            candidate = path.with_name(f"{path.name}.{count}")


def shown(path: Path) -> str:
    """The path as people type it: relative where it lies below the working folder."""
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
