"""The fleet file: how hosts find their controller, and the token they prove themselves with.

A file that only its owner may read, or its contents in the environment: never a command line, which
``ps`` shows to everybody.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from testbed.model.errors import BadInput

FLEET_FILE_ENV = "TESTBED_FLEET_FILE"
FLEET_ENV = "TESTBED_FLEET"
NODE_ENV = "TESTBED_NODE"
"""Number of the node that a host is on, where hosts are started elsewhere."""
HOSTS = "testbed.fleet.fork_server"
"""The module of hosts that fork ranks of cases."""


class FleetFile(msgspec.Struct, frozen=True):
    """Where the controller listens. world: hosts of the fleet. nodes: how many machines they are
    started on by others; 0 where the controller starts them itself. name: of this fleet, no secret.
    hosts: the module that they run.
    """

    host: str
    port: int
    token: str
    world: int
    nodes: int = 0
    name: str = ""
    hosts: str = HOSTS

    @property
    def at(self) -> str:
        """``HOST:PORT``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def write(self, path: Path) -> None:
        """Make the file, in place of an older fleet file, with mode 0600. Raises OSError, and
        BadInput if there is another file at ``path``.
        """
        draft, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(draft, "wb") as file:
                file.write(msgspec.json.encode(self))
            check_replaceable(path)
            os.rename(name, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it has been renamed
                os.unlink(name)

    def remove(self, path: Path) -> None:
        """Remove the file, if it is still this fleet's."""
        with contextlib.suppress(BadInput):  # somebody has put another file there, or it is gone
            if read(path) == self:
                path.unlink(missing_ok=True)


def check_place(path: Path) -> None:
    """Raise BadInput where no fleet file can be made at ``path``: its folder cannot be, or there is
    another file. Makes nothing.
    """
    folder = path.absolute().parent
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
    except OSError as error:
        raise BadInput(f"fleet file {path} cannot be written: {error.strerror}") from error
    if not there.is_dir():
        raise BadInput(f"fleet file {path} cannot be written: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"fleet file {path} cannot be written: {there} may not be written to")
    check_replaceable(path)


def check_replaceable(path: Path) -> None:
    """Raise BadInput where something is at ``path`` that is no fleet file."""
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"fleet file {path} cannot be written: {error.strerror}") from error
    try:
        regular = path.is_file() and not path.is_symlink()
        if regular:
            read(path)
    except BadInput:
        regular = False
    if not regular:
        raise BadInput(f"fleet file {path}: there is another file, which stays: give another path")


def read(path: Path) -> FleetFile:
    """The file's contents. Raises BadInput if it cannot be read or is no fleet file."""
    try:
        return _parsed(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"fleet file {path} cannot be read: {error.strerror}") from error


def from_environment() -> FleetFile:
    """What ``TESTBED_FLEET`` (the contents) or ``TESTBED_FLEET_FILE`` (the path) says. Raises
    BadInput.
    """
    if FLEET_ENV in os.environ:
        return _parsed(os.environ[FLEET_ENV].encode(), f"environment variable {FLEET_ENV}")
    if FLEET_FILE_ENV in os.environ:
        return read(Path(os.environ[FLEET_FILE_ENV]))
    raise BadInput(f"no fleet file: set {FLEET_FILE_ENV} (its path) or {FLEET_ENV} (its contents)")


def _parsed(data: bytes, where: str) -> FleetFile:
    try:
        file = msgspec.json.decode(data, type=FleetFile)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{where} is no fleet file: {error}") from error
    if not file.hosts.startswith("testbed."):
        raise BadInput(f"{where} is no fleet file: its hosts run {file.hosts}, not the testbed's")
    return file
