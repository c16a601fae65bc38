"""The fleet file: how hosts find their controller, and the token they prove themselves with.

A file that only its owner may read, or its contents in the environment: never a command line, which
``ps`` shows to everybody.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from testbed.errors import BadInput

FLEET_FILE_ENV = "TESTBED_FLEET_FILE"
FLEET_ENV = "TESTBED_FLEET"
HOSTS = "testbed.world.host"
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
        """Make the file, in place of an older one, with mode 0600. Raises OSError."""
        draft, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        with os.fdopen(draft, "wb") as file:
            file.write(msgspec.json.encode(self))
        os.rename(name, path)

    def remove(self, path: Path) -> None:
        """Remove the file, if it is still this fleet's."""
        if path.exists() and read(path) == self:
            path.unlink()


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
