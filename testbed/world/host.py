"""A host: the long-lived process that torchrun starts, one per rank of the fleet.

It imports torch once, stays single-threaded and opens no process group; for each case it forks the
ranks it is told to, holds their logs, watches them through pidfds, and sends home what they left.
When the controller's connection closes it kills its ranks and exits.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from testbed import __version__
from testbed.death import die_with_parent
from testbed.errors import BadInput, EnvironmentFault
from testbed.scenario import Scenario, from_object
from testbed.trace.log import SharedLog
from testbed.world.seat import BROKE, DONE, EXIT_TROUBLE, GO, READY, RELEASE, RankSeat, RunRank
from testbed.world.wire import (
    Broke,
    Bye,
    Done,
    Ended,
    Freeze,
    Go,
    Hello,
    Probe,
    Probed,
    Ready,
    Refused,
    Release,
    RunCase,
    Stop,
    Trouble,
    Welcome,
    Wire,
)

FLEET_FILE_ENV = "TESTBED_FLEET_FILE"
_CONNECT_TIMEOUT_S = 10.0
_STACK_LIMIT_S = 0.25
_OUTPUT_LIMIT = 64 * 1024


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
    done: bool = False
    broke: bool = False
    paused: bool = False  # by somebody else, when it was to be frozen
    stopped: bool = False


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

    def serve(self) -> None:
        """Answer the controller until it closes the connection or says Bye; no rank is left
        then.
        """
        self._selector.register(self._wire, selectors.EVENT_READ, self._answer)
        try:
            going_on = True
            while going_on:
                for key, _ in self._selector.select():
                    going_on = key.data() is not False and going_on
        finally:
            for child in self._children.values():
                os.kill(child.pid, signal.SIGKILL)

    def _answer(self) -> bool:
        message = self._wire.receive()
        if message is None or isinstance(message, Bye):
            return False
        if isinstance(message, RunCase):
            self._start(message)
        elif isinstance(message, Go) and message.case == self._case:
            self._tell(GO)
        elif isinstance(message, Release) and message.case == self._case:
            self._tell(RELEASE)
        elif isinstance(message, Probe) and message.case == self._case:
            self._probe(message.whole)
        elif isinstance(message, Freeze) and message.case == self._case:
            self._freeze()
        elif isinstance(message, Stop) and message.case == self._case:
            self._stop()
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

    def _fork(self, scenario: Scenario, rank: int, order: RunCase) -> Child:
        log = SharedLog(order.log_bytes)
        ours, theirs = socket.socketpair()
        output_fd, stack_fd = os.memfd_create("output"), os.memfd_create("stack")
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with_parent(host)
            self._wire.close()
            ours.close()
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            self._run_rank(RankSeat(scenario, rank, order.store, log, theirs, stack_fd))
        theirs.close()
        return Child(rank, pid, os.pidfd_open(pid), log, ours, output_fd, stack_fd)

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
        else:  # the link closed: the pidfd tells how the rank ended
            self._selector.unregister(child.link)

    def _tell(self, byte: bytes) -> None:
        for child in self._children.values():
            try:
                child.link.sendall(byte)
            except OSError:  # it is gone already; its pidfd tells
                continue

    def _probe(self, whole: bool) -> None:
        for child in self._children.values():
            committed, blocked_in = child.log.blocked_in()
            block = child.log.committed() if whole else b""
            blocked = blocked_in is not None
            self._wire.send(Probed(self._case, child.rank, committed, blocked, block))

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
        _, status = os.waitpid(child.pid, 0)
        exit_kind, signum, trouble = _how_it_ended(child, status)
        for fd in (child.link, child.pidfd):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        stack = _slurp(child.stack_fd)
        ended = Ended(
            case=self._case,
            rank=child.rank,
            exit=exit_kind,
            signal=signum,
            dropped=child.log.dropped,
            block=child.log.committed(),
            stack="" if child.broke else stack,
            output=_slurp(child.output_fd),
            trouble=trouble,
        )
        child.log.close()
        child.link.close()
        os.close(child.pidfd)
        self._wire.send(ended)


def _how_it_ended(child: Child, status: int) -> tuple[str, int, bool]:
    if os.WIFSIGNALED(status):
        if child.stopped:
            return "raised" if child.broke else "paused" if child.paused else "stopped", 0, False
        return "signal", os.WTERMSIG(status), False
    code = os.WEXITSTATUS(status)
    if code == 0 and child.done:
        return "done", 0, False
    return "raised", 0, code == EXIT_TROUBLE


def _is_stopped(pid: int) -> bool:
    # The state follows the command's name, which may hold anything but ends at the last ")".
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def _slurp(fd: int) -> str:
    text = os.pread(fd, _OUTPUT_LIMIT, 0).decode(errors="replace")
    os.close(fd)
    return text


def _connect() -> Wire:
    fleet = json.loads(Path(os.environ[FLEET_FILE_ENV]).read_text())
    where = (fleet["host"], fleet["port"])
    try:
        connection = socket.create_connection(where, timeout=_CONNECT_TIMEOUT_S)
    except OSError as error:
        raise SystemExit(
            f"testbed host: no controller at {where[0]}:{where[1]} ({error})"
        ) from error
    connection.settimeout(None)
    wire = Wire(connection)
    index = int(os.environ.get("RANK", "0"))
    wire.send(Hello(fleet["token"], __version__, index, os.getpid()))
    answer = wire.receive()
    if not isinstance(answer, Welcome):
        why = answer.why if isinstance(answer, Refused) else "it closed the connection"
        raise SystemExit(f"testbed host {index}: refused by the controller: {why}")
    return wire


def main() -> None:
    """Entry point of ``python -m testbed.world.host``, as torchrun starts it."""
    die_with_parent(os.getppid())
    # Only now torch: the imports take seconds in which the parent may die.
    from testbed import subjects
    from testbed.world.rank import run_rank

    serve(subjects.preload, run_rank)


def serve(prepare: Callable[[str], None], run_rank: RunRank) -> NoReturn:
    """Connect to the controller and be a Host until it is gone; ends the process."""
    wire = _connect()
    gc.collect()
    gc.freeze()  # keeps the children from copying every page the collector would touch
    status = 1
    try:
        Host(wire, prepare, run_rank).serve()
        status = 0
    except ConnectionError:
        status = 0  # the controller is gone, and serve() has ended the ranks
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)  # no finalisers: torch's may wait for threads that a fork has cut off


if __name__ == "__main__":
    main()
