"""One disposable rank: builds real process groups, runs the case's loop, leaves its record, exits.

Runs in a child that a host forked; talks to its host through a socket pair in single bytes. Its
record lies in the shared log that the host mapped before the fork.
"""

import faulthandler
import os
import platform
import signal
import traceback
from typing import NoReturn

import torch

from testbed import __version__, subjects
from testbed.cache import TransferController
from testbed.device import CPU
from testbed.errors import EnvironmentFault
from testbed.events import Clock
from testbed.subjects import sglang
from testbed.trace.events import About, Raised
from testbed.trace.recorder import LogRecorder
from testbed.trace.shim import Shim
from testbed.workloads.assemble import assemble
from testbed.world.meet import meet
from testbed.world.seat import BROKE, DONE, EXIT_RAISED, EXIT_TROUBLE, GO, READY, RankSeat

_SUBJECT_ROOMS = ("/testbed/protocols/", "/testbed/subjects/", "/testbed/faults/")


def run_rank(seat: RankSeat) -> NoReturn:
    """Run the seat's scenario as its rank and never return: the process ends here."""
    # chain=True: after the dump the signal's default action ends the process, and so tells the
    # host that the stack is complete. All threads, since one of gloo's may take the signal.
    faulthandler.register(signal.SIGUSR1, file=seat.stack_fd, all_threads=True, chain=True)
    clock = Clock()
    recorder = LogRecorder(seat.log, clock)
    shim: Shim | None = None
    try:
        torch.set_num_threads(1)
        scenario = seat.scenario
        gpu, groups, names = meet(seat)
        shim = Shim(recorder, seat.rank, names)
        hardware = gpu if gpu is not None and scenario.device == "cuda" else CPU
        context = assemble(scenario, seat.rank, clock, recorder, groups, hardware)
        versions = _versions(scenario.subject) | (gpu.versions() if gpu is not None else {})
        recorder.add(About, context.subject.promises, versions, recorder.born_us)
        shim.install(context.bench.hooks.inside)
        seat.link.sendall(READY)
        if seat.link.recv(1) != GO:
            os._exit(0)
        for _ in range(scenario.steps):
            context.run_step()
        context.finish()
    except BaseException as error:  # noqa: BLE001 -- recorded, and the process ends below
        told = "".join(traceback.format_exception(error))
        inside = shim.failed_op(error) if shim is not None else ""
        recorder.add(Raised, type(error).__name__, str(error), told, inside)
        # Out of a torch.distributed call: the model's traffic meets the subject's mistakes too.
        if not (inside or by_subject(error, seat.scenario.subject)):
            os._exit(EXIT_TROUBLE)
        _stay(seat, BROKE)  # inside the except: what the frames hold stays alive, sends above all
        os._exit(EXIT_RAISED)
    _stay(seat, DONE)
    os._exit(0)


def _stay(seat: RankSeat, word: bytes) -> None:
    """Say how the loop ended, and wait with every connection open: an exit would cut them, and what
    slower ranks then still read, or not, would be up to the machine.
    """
    seat.link.sendall(word)
    seat.link.recv(1)


def _versions(subject: str) -> dict[str, str]:
    return {
        "testbed": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        **subjects.versions(subject),
    }


def by_subject(error: BaseException, subject: str) -> bool:
    """Whether the exception is the subject's fault. One that never passed through its code is the
    testbed's own, and so is a release that cannot be lifted.
    """
    if isinstance(error, EnvironmentFault):
        return False
    # Lifted code that asks our stand-in for a name of its own controller: not its fault either.
    if isinstance(error, AttributeError) and isinstance(error.obj, TransferController):
        return not sglang.is_lifted(subject)
    frames = traceback.extract_tb(error.__traceback__)
    own = subjects.source(subject)
    return any(
        (own and frame.filename == own)
        or frame.filename.startswith("sglang")
        or any(room in frame.filename for room in _SUBJECT_ROOMS)
        for frame in frames
    )
