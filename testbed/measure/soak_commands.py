"""Attacks on whole commands at random moments: how each ends, what it says, what is left behind.

A seed decides the commands, the attacks and the moments; where a moment falls in the work is up to
the machine. Every second command has two processes beside it that spin.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.death import marked
from testbed.fleet import fleet_file
from testbed.model.errors import BadInput, one_line

MARK = "TESTBED_SOAK"

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 120.0
_GONE_LIMIT_S = 40.0
_LOOK_S = 0.01
_LATEST_S = 5.0
_STRANGERS = 10
_DRIPS_S = 0.2
_SMALLEST_WORLD = 4  # what the scenarios' own topology needs
_LEAVES_BEHIND = "testbed.measure.soak_subjects:leaves_behind"

_LAUNCHER, _TORCHRUN = "launchers.torchrun", "torch.distributed.run"
_HOSTS = ("testbed.fleet.fork_server", "testbed.bench.ranks.host")


def commands(subject: str, world: int) -> dict[str, list[str]]:
    """Name -> words of a command that takes some seconds and ends as expected."""
    some = "skew-followers-slower-1,skew-followers-slower-3,skew-never-follower"
    size = f"--world={max(world, _SMALLEST_WORLD)}"
    return {
        "run": ["testbed", "run", *some.split(","), f"--subject={subject}", "--pp=2", size],
        "matrix": ["testbed", "matrix", f"--subjects={subject},fused", f"--scenarios={some}", size],
        "soak": ["testbed.measure.soak", "--examples=15", f"--subject={subject}", size],
        "bench": ["testbed", "bench", "--quick", "--only=cost", f"--subjects={subject}", size],
    }


@dataclass
class Attacked:
    """A command that runs. folder: of its temporary files, and mark of all its processes."""

    process: "subprocess.Popen[str]"
    folder: Path
    chance: random.Random

    def below(self, modules: Sequence[str]) -> list[int]:
        """Its processes that were started with one of these modules, oldest first; no ranks."""
        found = [pid for pid in marked(MARK, str(self.folder)) if _module(pid) in modules]
        return sorted(pid for pid in found if _module(_parent(pid)) not in modules)

    def ranks(self) -> list[int]:
        """What hosts have forked."""
        found = [pid for pid in marked(MARK, str(self.folder)) if _module(pid) in _HOSTS]
        return [pid for pid in found if _module(_parent(pid)) in _HOSTS]

    def until(self, reached: Callable[[], object]) -> bool:
        """Whether it came to that before the command ended."""
        while self.process.poll() is None:
            if reached():
                return True
            time.sleep(_LOOK_S)
        return False

    def a_moment(self) -> None:
        """Wait for the fleet to be started, and then for a random time, if it goes on so long."""
        self.until(lambda: self.below([_LAUNCHER]))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.chance.uniform(0, _LATEST_S))


@dataclass(frozen=True)
class Attack:
    """statuses: with which the command may end. subject: of the cases."""

    name: str
    strike: Callable[[Attacked], None]
    statuses: frozenset[int]
    subject: str = "batched"


def attacks() -> list[Attack]:
    """Every attack; a command that is over before the moment comes ends as if there were none."""
    as_expected = frozenset({0})
    lost = frozenset({0, 3})
    any_verdict = frozenset({0, 1, 3})
    return [
        Attack("SIGTERM of the command", _signalled(signal.SIGTERM), frozenset({0, 143})),
        Attack("SIGINT of the command", _signalled(signal.SIGINT), frozenset({0, 130})),
        Attack("SIGKILL of the command", _signalled(signal.SIGKILL), frozenset({0, -9})),
        Attack("SIGKILL of the launcher", _killed([_LAUNCHER]), lost),
        Attack("SIGKILL of torchrun", _killed([_TORCHRUN]), lost),
        Attack("SIGKILL of a host", _killed(_HOSTS), lost),
        Attack("SIGKILL of a rank", _rank_killed, any_verdict),
        Attack("a host stopped as it starts", _stopped_as_it_starts, frozenset({143})),
        Attack("slow strangers at the door", _strangers, as_expected),
        Attack("processes left behind", lambda _: None, as_expected, _LEAVES_BEHIND),
        Attack(
            "processes left behind, SIGKILL of the command",
            _signalled(signal.SIGKILL),
            frozenset({0, -9}),
            _LEAVES_BEHIND,
        ),
    ]


def _signalled(signum: signal.Signals) -> Callable[[Attacked], None]:
    def strike(command: Attacked) -> None:
        command.a_moment()
        command.process.send_signal(signum)

    return strike


def _killed(modules: Sequence[str]) -> Callable[[Attacked], None]:
    def strike(command: Attacked) -> None:
        command.a_moment()
        for pid in command.below(modules)[:1]:
            _send(pid, signal.SIGKILL)

    return strike


def _rank_killed(command: Attacked) -> None:
    command.a_moment()
    command.until(command.ranks)
    for pid in command.ranks()[:1]:
        _send(pid, signal.SIGKILL)


def _stopped_as_it_starts(command: Attacked) -> None:
    command.until(lambda: command.below(_HOSTS))
    for pid in command.below(_HOSTS)[:1]:
        _send(pid, signal.SIGSTOP)
    time.sleep(command.chance.uniform(0, 1))
    command.process.send_signal(signal.SIGTERM)


def _strangers(command: Attacked) -> None:
    """They come before any host can, and say a byte at a time of what could be a greeting."""
    command.until(lambda: list(command.folder.glob("testbed-*/fleet.json")))
    with contextlib.ExitStack() as closing:
        came: list[socket.socket] = []
        for file in command.folder.glob("testbed-*/fleet.json"):
            with contextlib.suppress(BadInput, OSError):  # it is over already
                fleet = fleet_file.read(file)
                for _ in range(_STRANGERS):
                    stranger = socket.create_connection((fleet.host, fleet.port))
                    came.append(closing.enter_context(stranger))
        while came and command.process.poll() is None:
            for stranger in list(came):
                try:
                    stranger.send(b"\x01")
                except OSError:  # turned away
                    came.remove(stranger)
            time.sleep(_DRIPS_S)


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


@dataclass
class Ends:
    """What an attack on a command came to. seconds: from the attack to its end."""

    runs: int = 0
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def strike(attack: Attack, words: Sequence[str], chance: random.Random, ends: Ends) -> None:
    """One command under one attack."""
    work = Path(tempfile.mkdtemp(prefix="testbed-soak-"))
    folder = work / "temporary"
    folder.mkdir()
    try:
        with (work / "said").open("w+") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=work,
                env={
                    **os.environ,
                    "PYTHONPATH": _paths(),
                    "TMPDIR": str(folder),
                    MARK: str(folder),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                text=True,
            )
            attack.strike(Attacked(process, folder, chance))
            ends.runs += 1
            began = time.monotonic()
            try:
                status = process.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
                ends.wrong.append(f"it did not end within {_LIMIT_S:.0f} s")
            ends.seconds.append(time.monotonic() - began)
            said.seek(0)
            ends.wrong += _wrong(attack, status, said.read())
        ends.wrong += _left(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _wrong(attack: Attack, status: int, said: str) -> Iterator[str]:
    if status not in attack.statuses:
        last = said.strip().splitlines()[-1:]
        yield f"it ended with {status}: {one_line(' '.join(last))}"
    if "Traceback (most recent call last)" in said:
        yield f"a traceback: {one_line(said[-400:])}"


def _left(folder: Path) -> Iterator[str]:
    """What is left when all had the time to go; processes are ended."""
    until = time.monotonic() + _GONE_LIMIT_S
    while (left := marked(MARK, str(folder))) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    for pid in left:
        yield f"process {pid} is left ({_module(pid) or 'no module'})"
        _send(pid, signal.SIGKILL)
    files = sorted(path.name for path in folder.iterdir())
    if files:
        yield f"temporary files are left: {', '.join(files)}"


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """That many processes that do nothing as fast as they can."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _paths() -> str:
    return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def _module(pid: int) -> str:
    """What a Python process was started with by ``-m``; torchrun names its workers' after that."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
