"""The controller's side: starts a fleet of hosts, has them run one case after another, gathers
records.

Knows nothing of caches, protocols or torch: it deals in scenarios, messages and records.
"""

import contextlib
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from testbed.analysis.mismatch import stuck_in_mismatch
from testbed.analysis.wait_graph import Deadlock, prove
from testbed.death import end_marked
from testbed.fleet.fleet_file import FLEET_FILE_ENV, HOSTS, FleetFile
from testbed.fleet.heartbeat import LOOK_S
from testbed.fleet.keys import Keys
from testbed.fleet.listener import LAST_PORT, LOOPBACK, Door, Guest, check_loopback
from testbed.fleet.remote import Meeting, is_silent
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.events import About, Event, Raised
from testbed.model.record import ExitKind, RankRecord, RunRecord
from testbed.model.scenario import Scenario, to_object
from testbed.recorder.recorder import Read, read
from testbed.wire import (
    Broke,
    Bye,
    Done,
    Ended,
    Freeze,
    Go,
    Probe,
    Probed,
    Ready,
    Release,
    RunCase,
    Stop,
    StoreAsk,
    Trouble,
    Wire,
)

_START_LIMIT_S = 60.0
_BUILD_LIMIT_S = 30.0
_BUILD_ON_GPU_LIMIT_S = 120.0
_STOP_LIMIT_S = 10.0
# A host answers in microseconds; one that does not for so long is stopped, or its machine is.
_ANSWER_LIMIT_S = 5.0
_CLOSE_LIMIT_S = 3.0
_LAST_WORDS_LIMIT_S = 1.0
# After a rank broke, how long its peers may go without progress before they are ended. Where it
# died they raise about its connections; else they go on until they cannot: mostly that is proven.
_QUIET_AFTER_DEATH_S = 0.04
_QUIET_S = 0.25
# How often a case that says nothing is looked at.
_PROBE_S = 0.02
_ROOM_BYTES = 1 << 20
# What ranks may record. Memory is taken only as it is used, by all ranks of a case together.
_LOG_BYTES_PER_STEP = 16 * 1024
_LOG_BYTES_MIN, _LOG_BYTES_MAX = 1 << 24, 1 << 28
_LOG_BYTES_OF_ALL = 1 << 29

EndedHow = Literal["finished", "broken", "deadline", "deadlock"]
_Standing = dict[int, int]  # rank -> bytes its log has: two equal ones mean no progress


@dataclass
class _Read:
    """What is known of a running rank's log: its first ``size`` bytes, and the events in them."""

    size: int = 0
    events: list[Event] = field(default_factory=list)

    def take(self, block: bytes) -> None:
        """What follows in the log."""
        self.size += len(block)
        self.events += read(block).events


@dataclass
class _Case:
    """The case in flight, as its messages come in."""

    number: int
    scenario: Scenario
    ready: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    broke: set[int] = field(default_factory=set)  # raised, and stay until they are stopped
    begun: bool = False
    ended: dict[int, Ended] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)  # ranks that their host could not fork
    trouble: list[str] = field(default_factory=list)
    probed: dict[int, Probed] = field(default_factory=dict)
    read: dict[int, "_Read"] = field(default_factory=dict)
    keys: Keys = field(default_factory=Keys)  # the ranks' store, where they share no folder

    @property
    def size(self) -> int:
        return self.scenario.topology.size

    @property
    def all_gone(self) -> bool:
        """No rank of the case runs any more."""
        return len(self.ended) + len(self.absent) == self.size

    @property
    def all_answered(self) -> bool:
        """Every rank was probed, or is gone."""
        return len(self.probed.keys() | self.ended.keys() | self.absent) == self.size

    @property
    def standing(self) -> _Standing:
        """Of ranks that are blocked or have left their loop; empty while none is blocked."""
        if not any(probed.blocked for probed in self.probed.values()):
            return {}
        return {
            rank: probed.committed
            for rank, probed in self.probed.items()
            if probed.blocked or rank in self.done | self.broke
        }

    @property
    def moving(self) -> set[int]:
        """Ranks that may still do something by themselves."""
        waiting = self.done | self.broke | (set() if self.begun else self.ready)
        return set(range(self.size)) - self.ended.keys() - self.absent - waiting

    @property
    def died(self) -> bool:
        """A rank's process ended before it was told to."""
        return any(ended.exit != "done" for ended in self.ended.values())

    @property
    def broken(self) -> bool:
        """A rank raised or died, or a host could not follow its orders."""
        return bool(self.trouble) or bool(self.broke) or self.died


class Fleet:
    """``world`` hosts under one torchrun. ``with Fleet(4) as fleet: record = fleet.run(scenario)``.

    Every topology with at most ``world`` ranks runs on the same fleet; with ``oversubscribe`` a
    host forks several ranks of one case. ``port`` 0 lets the kernel choose. ``hosts``: the module
    that torchrun runs, for hosts that fork ranks of another kind. ``probe_s``: how often a silent
    case is looked at. With a ``meeting`` the hosts are those that come to it, from wherever they
    were started. Raises EnvironmentFault if the fleet cannot start or loses a host.
    """

    def __init__(
        self,
        world: int = 4,
        *,
        oversubscribe: bool = False,
        port: int = 0,
        hosts: str = HOSTS,
        probe_s: float = _PROBE_S,
        meeting: Meeting | None = None,
    ) -> None:
        if world < 1:
            raise BadInput(f"the world has {world} ranks: give WORLD a whole number from 1 on")
        if not 0 <= port <= LAST_PORT:
            raise BadInput(f"port {port}: give one from 0 (any free one) to {LAST_PORT}")
        self.world = world
        self._oversubscribe = oversubscribe
        self._host_module = hosts
        self._probe_s = probe_s
        self._meeting = meeting
        self._lost_why = ""
        self._listen_at = 0.0
        self._cases = 0
        self._guests: list[Guest] = []
        self._wires: list[Wire] = []
        self._selector = selectors.DefaultSelector()
        self.folder = _private_folder()
        self._launcher: subprocess.Popen[bytes] | None = None
        try:
            self._seat(self._start(port) if meeting is None else meeting.gather())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the fleet and remove its files; safe to call twice. Hosts of a
        meeting of which one was lost are let go without a Bye: they come to the next fleet.
        """
        dismissed = self._meeting is None or not self.lost
        for wire in self._wires:
            with contextlib.suppress(OSError):  # it may be gone already
                if dismissed:
                    wire.send(Bye())
            wire.close()
        self._wires = []
        if self._launcher is not None:
            assert self._launcher.stdin is not None
            assert self._launcher.stdout is not None
            self._launcher.stdin.close()
            try:
                self._launcher.wait(_CLOSE_LIMIT_S)
            except subprocess.TimeoutExpired:  # stopped, perhaps: what it started dies with it
                self._launcher.kill()
                self._launcher.wait()
            self._launcher.stdout.close()
            self._launcher = None
            end_marked(str(self.folder))  # the launcher's task, had nobody ended it
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, scenario: Scenario) -> RunRecord:
        """Run one case on fresh ranks. Raises BadInput (does not fit) or EnvironmentFault (a
        host is lost). A host of a meeting that is lost in mid-case is the record's ``trouble``.
        """
        scenario.topology.check_fits(self.world, self._oversubscribe)
        if self.lost:
            raise EnvironmentFault(f"{self.lost}; start a new fleet")
        began = time.monotonic()
        self._cases += 1
        case = _Case(self._cases, scenario)
        how = self._run_here(case) if self._meeting is None else self._run_elsewhere(case)
        return _record(case, how, (time.monotonic() - began) * 1e3)

    @property
    def lost(self) -> str:
        """Why no further case can run, once a host is gone; else empty. Asks the connections: an
        idle fleet has nobody else to notice.
        """
        if self._meeting is not None and self._wires and not self._lost_why:
            for key, _ in self._selector.select(0):
                with contextlib.suppress(EnvironmentFault):
                    self._receive(key.data)
            self._listen()
        return self._lost_why

    def _run_here(self, case: _Case) -> EndedHow:
        """The ranks meet in a folder of this machine."""
        store = self.folder / f"case-{case.number}"
        try:
            store.mkdir()
        except FileNotFoundError as error:  # whoever clears temporary files has come by
            self._lost_why = f"the fleet's folder is gone ({error.strerror})"
            raise EnvironmentFault(self._lost_why) from error
        except OSError as error:
            self._lost_why = f"the fleet's folder {self.folder} cannot be used ({error.strerror})"
            raise EnvironmentFault(self._lost_why) from error
        self._order(case, str(store))
        how = self._watch(case)
        shutil.rmtree(store)
        return how

    def _run_elsewhere(self, case: _Case) -> EndedHow:
        """The ranks meet through the controller. Lost machines are part of what may happen there:
        the case is told as an error, and the hosts' next fleet goes on.
        """
        try:
            self._order(case, "")
            return self._watch(case)
        except EnvironmentFault as fault:
            case.trouble.insert(0, str(fault))
            return "broken"

    def _start(self, port: int) -> list[Guest]:
        check_loopback()
        with contextlib.closing(Door(LOOPBACK, port, self.world)) as door:
            fleet_file = self.folder / "fleet.json"
            FleetFile(door.host, door.port, door.token, self.world).write(fleet_file)
            launcher = [sys.executable, "-m", "launchers.torchrun"]
            self._launcher = subprocess.Popen(
                [*launcher, str(self.world), str(self.folder), self._host_module],
                env={**_environment(), FLEET_FILE_ENV: str(fleet_file)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the controller's to handle
            )
            return self._accept(door)

    def _accept(self, door: Door) -> list[Guest]:
        seated: dict[int, Guest] = {}
        deadline = time.monotonic() + _START_LIMIT_S
        assert self._launcher is not None
        assert self._launcher.stdout is not None
        with selectors.DefaultSelector() as coming:
            coming.register(door, selectors.EVENT_READ)
            coming.register(self._launcher.stdout, selectors.EVENT_READ)
            while len(seated) < self.world:
                left = deadline - time.monotonic()
                patience_s = left if door.patience_s is None else min(left, door.patience_s)
                came = {key.fileobj for key, _ in coming.select(max(patience_s, 0))}
                seated.update({guest.host: guest for guest in door.admit(seated)})
                if came - {door}:
                    raise EnvironmentFault(
                        f"torchrun ended before its hosts came: {self._last_words()}"
                    )
                if time.monotonic() >= deadline:
                    raise EnvironmentFault(
                        f"{len(seated)} of {self.world} hosts came within {_START_LIMIT_S:.0f} s"
                    )
        return [seated[host] for host in range(self.world)]

    def _seat(self, guests: list[Guest]) -> None:
        self._guests = guests
        self._wires = [guest.wire for guest in guests]
        for host, wire in enumerate(self._wires):
            self._selector.register(wire, selectors.EVENT_READ, host)

    def _last_words(self) -> str:
        """What torchrun said at its end, as the launcher passes it on; waits for that end."""
        assert self._launcher is not None
        assert self._launcher.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._launcher.stdout, selectors.EVENT_READ)
            if not waiting.select(_LAST_WORDS_LIMIT_S):
                return "torchrun goes on without it"
        told = self._launcher.stdout.readline().decode(errors="replace").strip()
        return told or "torchrun said nothing"

    def _order(self, case: _Case, store: str) -> None:
        scenario = case.scenario
        wanted = max(scenario.steps * _LOG_BYTES_PER_STEP, _LOG_BYTES_OF_ALL // case.size)
        log_bytes = min(max(wanted, _LOG_BYTES_MIN), _LOG_BYTES_MAX)
        data = to_object(scenario)
        hosts = self._hosts_of(case)
        for host, ranks in hosts.items():
            self._send(host, RunCase(case.number, data, ranks, store, log_bytes))

    def _hosts_of(self, case: _Case) -> dict[int, list[int]]:
        ranks = range(case.size)
        return {host: list(ranks[host :: self.world]) for host in range(min(self.world, case.size))}

    def _watch(self, case: _Case) -> EndedHow:
        limit_s = _BUILD_ON_GPU_LIMIT_S if case.scenario.needs_gpu else _BUILD_LIMIT_S
        if not self._until(case, lambda: len(case.ready) == case.size, limit_s):
            if not case.broken:
                late = sorted(set(range(case.size)) - case.ready)
                case.trouble.append(f"ranks {late} were not ready within {limit_s:.0f} s")
            return self._stop(case, "broken")
        case.begun = True
        self._tell(case, Go(case.number))
        how = self._step_through(case)
        if how == "finished":
            self._tell(case, Release(case.number))
            if self._until(case, lambda: case.all_gone, _STOP_LIMIT_S):
                return "broken" if case.broken else "finished"
        return self._stop(case, "broken" if case.broken else how)

    def _step_through(self, case: _Case) -> EndedHow:
        """Until every rank has left its loop, a rank broke, a deadlock is proven, or no rank has
        made any progress for as long as the scenario's deadline.
        """
        patience_s = case.scenario.patience_ms / 1e3
        progress, moved_at = -1, time.monotonic()
        before: _Standing = {}
        refuted: _Standing = {}  # a standstill already looked at: an event, a local queue
        hopeless: _Standing = {}  # one of collectives that do not fit
        while (left := moved_at + patience_s - time.monotonic()) > 0:
            if self._until(case, lambda: len(case.done) == case.size, min(left, self._probe_s)):
                return "finished"
            if not case.broken:
                self._probe(case, whole=False)
            if case.broken:
                return "broken"
            written = sum(probed.committed for probed in case.probed.values())
            if written != progress:
                progress, moved_at = written, time.monotonic()
            now = case.standing
            if now and now == before and now != refuted:
                events = self._events(case)
                if events is not None:
                    if self._proof(case, events) is not None:
                        return "deadlock"
                    if len(now) == case.size and stuck_in_mismatch(events, case.scenario.topology):
                        hopeless = now
                refuted = now
            if now and now == hopeless and time.monotonic() - moved_at > _QUIET_S:
                return "deadline"
            before = now
        return "deadline"

    def _events(self, case: _Case) -> dict[int, list[Event]] | None:
        """What every rank's log says as of now; None where a rank has none."""
        self._probe(case, whole=True)
        for rank in case.probed.keys() | case.ended.keys():
            known = case.read.setdefault(rank, _Read())
            if rank in case.ended:
                known.take(case.ended[rank].block[known.size :])
            else:
                known.take(case.probed[rank].block)
        if len(case.read) < case.size:
            return None  # a host had no such rank: its trouble is told elsewhere
        return {rank: known.events for rank, known in case.read.items()}

    def _proof(self, case: _Case, events: dict[int, list[Event]]) -> Deadlock | None:
        """Prove a deadlock from the events, then make sure that none of its ranks has moved
        since.
        """
        proof = prove(events, case.scenario.topology)
        if proof is None:
            return None
        seen = {rank: case.probed[rank].committed for rank in proof.dead if rank in case.probed}
        self._probe(case, whole=False)
        stands = all(
            rank in case.probed and case.probed[rank].committed == seen.get(rank)
            for rank in proof.dead
        )
        return proof if stands else None

    def _settle(self, case: _Case) -> None:
        """After a rank broke: let the others come to where they cannot go on, so that what they
        did is up to the scenario and not to the moment they were stopped in.
        """
        seen: Any = None
        refuted: _Standing = {}
        moved_at = time.monotonic()
        while case.moving:
            self._hear(case, _PROBE_S)
            self._probe(case, whole=False)
            written = {rank: probed.committed for rank, probed in case.probed.items()}
            now = (written, len(case.moving))
            standing = case.standing
            if now != seen:
                seen, moved_at = now, time.monotonic()
            elif standing and standing != refuted:
                events = self._events(case)
                proof = None if events is None else self._proof(case, events)
                if proof is not None and case.moving <= proof.dead:
                    return
                refuted = standing
            quiet_s = _QUIET_AFTER_DEATH_S if case.died else _QUIET_S
            if time.monotonic() - moved_at > quiet_s:
                return

    def _probe(self, case: _Case, *, whole: bool) -> None:
        """Fill ``case.probed`` with an answer for every rank that has not ended. Raises
        EnvironmentFault if a host does not answer.
        """
        case.probed.clear()
        known = {rank: read.size for rank, read in case.read.items()} if whole else {}
        self._tell(case, Probe(case.number, whole, known))
        deadline = time.monotonic() + _ANSWER_LIMIT_S
        while not case.all_answered:
            if not self._hear(case, deadline - time.monotonic()):
                raise self._mute(case)

    def _stop(self, case: _Case, how: EndedHow) -> EndedHow:
        """Let a broken case's other ranks notice it, then end whatever still runs."""
        if how == "broken" and not case.trouble:
            self._settle(case)
        # Frozen first, all of them: a stack must show where a rank stood, not how it then saw its
        # peers go. The answers to the probe say that every host has done it.
        self._tell(case, Freeze(case.number))
        self._probe(case, whole=False)
        self._tell(case, Stop(case.number))
        deadline = time.monotonic() + _STOP_LIMIT_S
        while not case.all_gone:
            if not self._hear(case, deadline - time.monotonic()):
                raise self._mute(case)
        return how

    def _until(self, case: _Case, reached: Callable[[], bool], limit_s: float) -> bool:
        """Hear messages until ``reached()``; False once the case is broken or the limit is up."""
        deadline = time.monotonic() + limit_s
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0 or case.broken:
                return False
            self._hear(case, left)
        return not case.broken

    def _hear(self, case: _Case, limit_s: float) -> bool:
        """Take what the hosts say within ``limit_s``; False if they said nothing."""
        heard = self._await(limit_s)
        for host in heard:
            message = self._receive(host)
            if message.case != case.number:
                continue  # a late word on a case that is over
            if isinstance(message, Ready):
                case.ready.add(message.rank)
            elif isinstance(message, Done):
                case.done.add(message.rank)
            elif isinstance(message, Broke):
                case.broke.add(message.rank)
            elif isinstance(message, Ended):
                case.ended[message.rank] = message
            elif isinstance(message, Probed):
                case.probed[message.rank] = message
            elif isinstance(message, StoreAsk):
                for answer in case.keys.ask(message):
                    self._send(answer.rank % self.world, answer)
            elif isinstance(message, Trouble):
                case.trouble.append(f"host {host}: {message.why}")
                case.absent.update(self._hosts_of(case)[host])
        return bool(heard)

    def _await(self, limit_s: float) -> list[int]:
        """Hosts that say something within ``limit_s``. Raises EnvironmentFault if one's machine is
        lost, which no event would tell.
        """
        if self._meeting is None:
            return [key.data for key, _ in self._selector.select(max(limit_s, 0))]
        until = time.monotonic() + limit_s
        while True:
            left = max(until - time.monotonic(), 0)
            heard = [key.data for key, _ in self._selector.select(min(left, LOOK_S))]
            if time.monotonic() >= self._listen_at and not self._listen():
                raise EnvironmentFault(self._lost_why)
            if heard or left <= 0:
                return heard

    def _listen(self) -> bool:
        """Whether every host's machine still gives a sign of life."""
        self._listen_at = time.monotonic() + LOOK_S
        silent = [guest for guest in self._guests if is_silent(guest)]
        if silent:
            nodes = ", ".join(sorted({guest.told for guest in silent}))
            hosts = ",".join(str(guest.host) for guest in silent)
            self._lose(f"{nodes} cannot be reached: no sign of life from host {hosts}")
        return not silent

    def _receive(self, host: int) -> Any:
        """Its next message. Raises EnvironmentFault if it has gone."""
        try:
            message = self._wires[host].receive()
        except OSError as error:
            raise self._lost(host) from error
        if message is None:
            raise self._lost(host)
        return message

    def _tell(self, case: _Case, message: Any) -> None:
        for host in self._hosts_of(case):
            self._send(host, message)

    def _send(self, host: int, message: Any) -> None:
        try:
            self._wires[host].send(message)
        except OSError as error:
            raise self._lost(host) from error

    def _mute(self, case: _Case) -> EnvironmentFault:
        """The fault that hosts do not answer; no further case can run."""
        answered = case.probed.keys() | case.ended.keys() | case.absent
        mute = [host for host, ranks in self._hosts_of(case).items() if not answered >= {*ranks}]
        named = ", ".join(map(str, mute)) or "of the fleet"
        self._lose(f"no answer from host {named} in {case.scenario.case_id}: stopped, or stuck")
        return EnvironmentFault(self._lost_why)

    def _lost(self, host: int) -> EnvironmentFault:
        """The fault that this host's connection has ended."""
        if self._meeting is None:
            self._lose(f"host {host} is gone: {self._last_words()}")
        elif self._listen():  # its machine is there: the host itself has ended
            self._lose(f"host {host} of {self._guests[host].told} is gone")
        return EnvironmentFault(self._lost_why)

    def _lose(self, why: str) -> None:
        self._lost_why = why
        if self._meeting is not None:
            self._meeting.missed()


def _private_folder() -> Path:
    """A new folder that only its owner may enter, with room for what a fleet writes there. Raises
    EnvironmentFault.
    """
    folder = None
    asked_for = os.environ.get("TMPDIR") or None  # else a full one would be passed over in silence
    try:
        folder = Path(tempfile.mkdtemp(prefix="testbed-", dir=asked_for))
        with (folder / "room").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
        (folder / "room").unlink()
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        where = asked_for or tempfile.tempdir or "the usual folders"
        raise EnvironmentFault(
            f"temporary files cannot be written to {where} ({error.strerror}): "
            "make room there, or set TMPDIR to another folder"
        ) from error
    return folder


def _environment() -> dict[str, str]:
    # Hosts import testbed and launchers from where this process did, whatever their folder.
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _record(case: _Case, how: EndedHow, wall_ms: float) -> RunRecord:
    logs = {rank: read(ended.block) for rank, ended in sorted(case.ended.items())}
    ranks = tuple(_rank_record(case.ended[rank], log) for rank, log in logs.items())
    trouble = list(case.trouble)
    trouble += [
        f"the record of rank {rank} is damaged ({log.damage}): does its code write past a buffer?"
        for rank, log in logs.items()
        if log.damage
    ]
    for ended, rank in zip((case.ended[r.rank] for r in ranks), ranks, strict=True):
        if ended.trouble:
            trouble.append(f"rank {rank.rank}: {_why(rank)}")
    about = next(_abouts(ranks), None)
    return RunRecord(
        scenario=case.scenario,
        ranks=ranks,
        ended=how,
        wall_ms=wall_ms,
        promises=about.promises if about else {},
        versions=about.versions if about else {},
        trouble=tuple(trouble),
    )


def _rank_record(ended: Ended, log: Read) -> RankRecord:
    exit_kind: ExitKind = ended.exit  # type: ignore[assignment]
    return RankRecord(
        rank=ended.rank,
        exit=exit_kind,
        events=tuple(log.events),
        signal=ended.signal,
        overflow=ended.dropped > 0,
        stack=ended.stack,
        output=ended.output,
        status=ended.status,
        log_bytes=ended.capacity,
        frames=tuple(ended.frames),
        left=ended.left,
    )


def _why(rank: RankRecord) -> str:
    """Why the testbed's own code failed on it."""
    for event in reversed(rank.events):
        if isinstance(event, Raised):
            return event.trouble
    said = rank.output.strip().splitlines()
    return said[-1] if said else "it ended without a word"


def _abouts(ranks: tuple[RankRecord, ...]) -> Iterator[About]:
    for rank in ranks:
        for event in rank.events:
            if isinstance(event, About):
                yield event
