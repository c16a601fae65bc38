"""A host: the long-lived process that torchrun starts, one per rank of the fleet.

It imports torch once, stays single-threaded and opens no process group; for each case it forks the
ranks it is told to, holds their logs, watches them through pidfds, and sends home what they left.
When the controller's connection closes it kills its ranks and exits; where others started it, on
whatever machine, it does so only when told Bye, and else calls the controller again.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from testbed.death import adopt_orphans, children, die_with_parent
from testbed.fleet import fleet_file
from testbed.fleet.dial import call, number_hosts
from testbed.fleet.fleet_file import FleetFile
from testbed.fleet.heartbeat import LOOK_S, FarWire
from testbed.fleet.interface import interface_of
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.scenario import Scenario, from_object
from testbed.rank.policy import wake_without_preempting
from testbed.rank.spec import BROKE, DONE, GO, READY, RELEASE, TROUBLE, RankSeat, RunRank
from testbed.recorder.log import SharedLog
from testbed.recorder.ownership import of_stack
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
    StoreAnswer,
    Trouble,
    Wire,
)

_INTERFACE_ENV = "GLOO_SOCKET_IFNAME"
_STACK_LIMIT_S = 0.25
_OUTPUT_LIMIT = 64 * 1024
# What is kept of each rank's log for its last words, which are bounded.
_LOG_RESERVE = 256 * 1024
# What a rank had started notices that it is gone, and goes too: a pipe closes, say.
_LEAVE_LIMIT_S = 0.1
_ROUNDS = 20


@dataclass
class Child:
    """A forked rank, as its host sees it."""

    rank: int
    pid: int
    pidfd: int
    log: SharedLog
    link: socket.socket
    output_fd: int
    stack_fd: int
    keys: Wire | None = None  # its calls on a store that the controller holds
    done: bool = False
    broke: bool = False
    trouble: bool = False  # the testbed's own code failed
    paused: bool = False  # by somebody else, when it was to be frozen
    stopped: bool = False

    def close(self) -> None:
        """Let go of what was shared with it, but for what it wrote."""
        self.log.close()
        self.link.close()
        os.close(self.pidfd)
        if self.keys is not None:
            self.keys.close()


class Host:
    """Serves one controller. ``prepare`` readies a subject before any fork, ``run_rank`` is the
    child's life.
    """

    def __init__(self, wire: Wire, prepare: Callable[[str], None], run_rank: RunRank) -> None:
        self._wire = wire
        self._prepare = prepare
        self._run_rank = run_rank
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}
        self._case = -1
        self._dismissed = False

    def serve(self) -> bool:
        """Answer the controller until it closes the connection or says Bye (True); no rank is left
        then. Raises ConnectionError if the connection or the controller's machine is lost.
        """
        self._selector.register(self._wire, selectors.EVENT_READ, self._answer)
        try:
            while self._serve_round():
                pass
        finally:
            self._end_all()
        return self._dismissed

    def _serve_round(self) -> bool:
        """What is to be done now; False once the controller has gone."""
        far = isinstance(self._wire, FarWire)
        going_on = True
        for key, _ in self._selector.select(LOOK_S if far else None):
            going_on = key.data() is not False and going_on
        if isinstance(self._wire, FarWire):
            self._wire.listen()
        return going_on

    def _end_all(self) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        for child in self._children.values():
            os.waitpid(child.pid, 0)
            child.close()
            os.close(child.stack_fd)
            os.close(child.output_fd)
        self._children.clear()
        _end(self._orphans())
        self._wire.close()
        self._selector.close()

    def _answer(self) -> bool:
        message = self._wire.receive()
        if message is None or isinstance(message, Bye):
            self._dismissed = message is not None
            return False
        if isinstance(message, RunCase):
            self._start(message)
        elif isinstance(message, Go) and message.case == self._case:
            self._tell(GO)
        elif isinstance(message, Release) and message.case == self._case:
            self._tell(RELEASE)
        elif isinstance(message, Probe) and message.case == self._case:
            self._probe(message)
        elif isinstance(message, Freeze) and message.case == self._case:
            self._freeze()
        elif isinstance(message, Stop) and message.case == self._case:
            self._stop()
        elif isinstance(message, StoreAnswer) and message.case == self._case:
            self._hand_on(message)
        return True

    def _start(self, order: RunCase) -> None:
        self._case = order.case
        try:
            scenario = from_object(order.scenario, "the controller's message")
            self._prepare(scenario.subject)
        except (BadInput, EnvironmentFault) as error:
            self._wire.send(Trouble(order.case, str(error)))
            return
        for rank in order.ranks:
            child = self._fork(scenario, rank, order)
            self._children[rank] = child
            self._selector.register(child.link, selectors.EVENT_READ, lambda c=child: self._hear(c))
            self._selector.register(
                child.pidfd, selectors.EVENT_READ, lambda c=child: self._reap(c)
            )
            if child.keys is not None:
                self._selector.register(
                    child.keys, selectors.EVENT_READ, lambda c=child: self._pass_on(c)
                )

    def _fork(self, scenario: Scenario, rank: int, order: RunCase) -> Child:
        log = SharedLog(order.log_bytes, _LOG_RESERVE)
        ours, theirs = socket.socketpair()
        keys = None if order.store else socket.socketpair()
        output_fd, stack_fd = os.memfd_create("output"), os.memfd_create("stack")
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(output_fd, 1)
                os.dup2(output_fd, 2)
                die_with_parent(host)
                os.setpgid(0, 0)  # what it leaves behind is known by its group
                wake_without_preempting()
                self._wire.close()
                ours.close()
                theirs_keys = keys[1] if keys else None
                seat = RankSeat(
                    scenario, rank, order.case, order.store, theirs_keys, log, theirs, stack_fd
                )
                os.register_at_fork(after_in_child=seat.part)
                self._run_rank(seat)
            except BaseException:  # noqa: BLE001 -- told; what follows is the host's life
                traceback.print_exc()
                theirs.sendall(TROUBLE)
            finally:
                os._exit(1)
        theirs.close()
        child = Child(rank, pid, os.pidfd_open(pid), log, ours, output_fd, stack_fd)
        if keys:
            keys[1].close()
            child.keys = Wire(keys[0])
        return child

    def _hear(self, child: Child) -> None:
        if self._children.get(child.rank) is not child:
            return  # reaped a moment ago, in the same round of the selector
        said = child.link.recv(1)
        if said == READY:
            self._wire.send(Ready(self._case, child.rank))
        elif said == DONE:
            child.done = True
            self._wire.send(Done(self._case, child.rank))
        elif said == BROKE:
            child.broke = True
            self._wire.send(Broke(self._case, child.rank))
        elif said == TROUBLE:
            child.trouble = True
        else:  # the link closed: the pidfd tells how the rank ended
            self._selector.unregister(child.link)

    def _pass_on(self, child: Child) -> None:
        """A rank's call on the store, to the controller."""
        if self._children.get(child.rank) is not child:
            return
        assert child.keys is not None
        ask = child.keys.receive()
        if ask is None:  # it has ended: the pidfd tells how
            self._selector.unregister(child.keys)
        else:
            self._wire.send(ask)

    def _hand_on(self, answer: StoreAnswer) -> None:
        """What the store answers, to the rank that asked."""
        child = self._children.get(answer.rank)
        if child is not None and child.keys is not None:
            with contextlib.suppress(OSError):  # it is gone already; its pidfd tells
                child.keys.send(answer)

    def _tell(self, byte: bytes) -> None:
        for child in self._children.values():
            try:
                child.link.sendall(byte)
            except OSError:  # it is gone already; its pidfd tells
                continue

    def _probe(self, order: Probe) -> None:
        for child in self._children.values():
            committed, blocked = child.log.standing()
            block = child.log.committed(order.known.get(child.rank, 0)) if order.whole else b""
            self._wire.send(Probed(self._case, child.rank, committed, blocked > 0, block))

    def _freeze(self) -> None:
        for child in self._children.values():
            child.paused = _is_stopped(child.pid)
        self._signal(signal.SIGSTOP)

    def _signal(self, signum: signal.Signals) -> None:
        for child in self._children.values():
            # A pidfd, so that no other process can be hit; one that has ended waits to be reaped.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, signum)

    def _stop(self) -> None:
        for child in self._children.values():
            child.stopped = True
        self._signal(signal.SIGUSR1)
        self._signal(signal.SIGCONT)
        for child in list(self._children.values()):
            # The rank's handler dumps its stack and then dies of the signal; a rank that cannot
            # (not yet that far) is killed without.
            with selectors.DefaultSelector() as waiting:
                waiting.register(child.pidfd, selectors.EVENT_READ)
                waiting.select(_STACK_LIMIT_S)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            self._reap(child)

    def _reap(self, child: Child) -> None:
        if self._children.get(child.rank) is not child:
            return
        del self._children[child.rank]
        _, wait_status = os.waitpid(child.pid, 0)
        _hear_out(child)
        exit_kind, signum, status = _how_it_ended(child, wait_status)
        for fd in (child.link, child.pidfd, child.keys):
            if fd is not None and fd in self._selector.get_map():
                self._selector.unregister(fd)
        left = self._end_left_by(child)
        stack = _slurp(child.stack_fd)
        stack = "" if child.broke else stack
        ended = Ended(
            case=self._case,
            rank=child.rank,
            exit=exit_kind,
            signal=signum,
            dropped=child.log.dropped,
            block=child.log.committed(),
            stack=stack,
            output=_slurp(child.output_fd),
            trouble=child.trouble,
            status=status,
            capacity=child.log.capacity,
            frames=of_stack(stack),
            left=left,
        )
        child.close()
        self._wire.send(ended)

    def _end_left_by(self, rank: Child) -> int:
        """End what a rank that has ended left behind; how many processes that were. This host has
        adopted them. One that left the rank's group is known to be nobody's that still runs once
        the host has no other rank: then it counts for this last one.
        """
        ended = 0
        for _ in range(_ROUNDS):  # the children of those that are ended are adopted in turn
            left = [pid for pid in self._orphans() if not self._children or _is_of(pid, rank)]
            if not left:
                break
            ended += _end(left)
        return ended

    def _orphans(self) -> list[int]:
        ranks = {child.pid for child in self._children.values()}
        return [pid for pid in children() if pid not in ranks]


def _is_of(pid: int, rank: Child) -> bool:
    """Whether an orphan is in the group of a rank that has ended."""
    return os.getpgid(pid) == rank.pid


def _end(pids: Sequence[int]) -> int:
    """End children that are no ranks; how many did not do so by themselves at once."""
    opened = [os.pidfd_open(pid) for pid in pids]
    there = set(opened)
    until = time.monotonic() + _LEAVE_LIMIT_S
    with selectors.DefaultSelector() as waiting:
        for pidfd in opened:
            waiting.register(pidfd, selectors.EVENT_READ)
        while there and (left_s := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                waiting.unregister(key.fd)
                there.discard(key.fd)
    for pidfd in there:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for pid, pidfd in zip(pids, opened, strict=True):
        os.waitpid(pid, 0)
        os.close(pidfd)
    return len(there)


def _hear_out(child: Child) -> None:
    """What an ended rank has said and nobody has heard yet."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        said = child.link.recv(64, socket.MSG_DONTWAIT)
        child.broke |= BROKE in said
        child.trouble |= TROUBLE in said


def _how_it_ended(child: Child, wait_status: int) -> tuple[str, int, int]:
    """Its exit and signal as RankRecord has them, and its exit status: -1 unless it ended its own
    process without a word.
    """
    if os.WIFSIGNALED(wait_status):
        if child.stopped:
            return "raised" if child.broke else "paused" if child.paused else "stopped", 0, -1
        return "signal", os.WTERMSIG(wait_status), -1
    status = os.WEXITSTATUS(wait_status)
    if child.broke or child.trouble:
        return "raised", 0, -1
    if child.done and status == 0:
        return "done", 0, -1
    return "raised", 0, status


def _is_stopped(pid: int) -> bool:
    # The state follows the command's name, which may hold anything but ends at the last ")".
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def _slurp(fd: int) -> str:
    """The file's text, without its middle if it is long; closes it."""
    size = os.fstat(fd).st_size
    if size <= _OUTPUT_LIMIT:
        text = os.pread(fd, size, 0).decode(errors="replace")
    else:
        half = _OUTPUT_LIMIT // 2
        head, tail = (os.pread(fd, half, at).decode(errors="replace") for at in (0, size - half))
        text = f"{head}\n[{size - 2 * half} bytes left out]\n{tail}"
    os.close(fd)
    return text


def main() -> None:
    """Entry point of ``python -m testbed.fleet.fork_server``, as torchrun starts it."""
    die_with_parent(os.getppid())
    # Only now torch: the imports take seconds in which the parent may die.
    from testbed import subjects
    from testbed.rank.life import run_rank

    serve(subjects.preload, run_rank)


def serve(prepare: Callable[[str], None], run_rank: RunRank) -> NoReturn:
    """Find the controller and be a Host until it needs none any more; ends the process."""
    try:
        fleet = fleet_file.from_environment()
    except BadInput as error:
        sys.exit(f"testbed host: {error}")
    number_hosts(fleet)
    adopt_orphans()
    wire = call(fleet)
    gc.collect()
    gc.freeze()  # keeps the children from copying every page the collector would touch
    given = os.environ.get(_INTERFACE_ENV, "")
    status = 1
    try:
        while True:
            os.environ[_INTERFACE_ENV] = given or _interface(wire)
            if _is_over(Host(wire, prepare, run_rank), fleet):
                break
            wire = call(fleet)
        status = 0
    except SystemExit as refused:
        print(refused, file=sys.stderr, flush=True)
        os._exit(status)
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)  # no finalisers: torch's may wait for threads that a fork has cut off


def _interface(wire: Wire) -> str:
    """Where the ranks' own connections go: the way to the controller leads to the other nodes."""
    address = wire.socket.getsockname()[0]
    name = interface_of(address)
    if not name:
        raise SystemExit(
            f"testbed host: no interface has the address {address}: set {_INTERFACE_ENV} to one"
        )
    return name


def _is_over(host: Host, fleet: FleetFile) -> bool:
    """Serve the controller; whether this host is done for good then, all its ranks ended."""
    try:
        dismissed = host.serve()
    except ConnectionError:  # the controller is gone, or cannot be reached
        dismissed = False
    return dismissed or not fleet.nodes


if __name__ == "__main__":
    main()
