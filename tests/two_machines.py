"""Two machines, for tests: network namespaces with a cable between them."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CABLE = "cable"


@dataclass(frozen=True)
class Machine:
    """A namespace with an address on the cable."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """The command line that runs ``words`` on this machine."""
        return ["ip", "netns", "exec", self.namespace, *words]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that are made within belong to this machine, also later."""
        with open("/proc/thread-self/ns/net") as home:
            with open(f"/run/netns/{self.namespace}") as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def pull_the_plug(self) -> None:
        """The link goes down, without a word to anybody."""
        _ip("-n", self.namespace, "link", "set", _CABLE, "down")

    def plug_in(self) -> None:
        """The link is up again."""
        _ip("-n", self.namespace, "link", "set", _CABLE, "up")


def why_not() -> str:
    """Why this machine lends no namespaces; empty if it does."""
    if shutil.which("ip") is None:
        return "no ip command: install iproute2"
    if os.geteuid() != 0:
        return "network namespaces that two programs share need root"
    name = f"testbed-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"network namespaces are refused here: {tried.stderr.strip()}"
    cable = ["ip", "-n", name, "link", "add", _CABLE, "type", "veth", "peer", "name", "other"]
    laid = subprocess.run(cable, capture_output=True, text=True)
    _ip("netns", "del", name)
    return "" if laid.returncode == 0 else f"no veth pairs here: {laid.stderr.strip()}"


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Made before, gone after; whatever runs on them must have ended by then."""
    machines = [
        Machine(f"testbed-{os.getpid()}-{number}", f"10.77.0.{number}") for number in (1, 2)
    ]
    first, second = machines
    with contextlib.ExitStack() as undo:
        for machine in machines:
            _ip("netns", "add", machine.namespace)
            undo.callback(_ip, "netns", "del", machine.namespace)
        end, other_end = (
            ["name", _CABLE, "netns", machine.namespace] for machine in (first, second)
        )
        _ip("link", "add", *end, "type", "veth", "peer", *other_end)
        for machine in machines:
            _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", _CABLE)
            _ip("-n", machine.namespace, "link", "set", _CABLE, "up")
            _ip("-n", machine.namespace, "link", "set", "lo", "up")
        yield first, second


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def network_of(pid: int) -> str:
    """Which network a process is in, as the kernel names it."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())
