"""One disposable rank: builds real process groups, runs the case's loop, leaves its record, exits.

Runs in a child that a host forked; talks to its host through a socket pair in single bytes. Its
record lies in the shared log that the host mapped before the fork.
"""

import faulthandler
import os
import platform
import signal
from typing import NoReturn

import torch

from testbed import __version__, subjects
from testbed.device import CPU
from testbed.model.events import About, Raised
from testbed.rank.assemble import assemble
from testbed.rank.blame import last_words, trouble_of
from testbed.rank.groups import meet
from testbed.rank.spec import BROKE, DONE, GO, READY, TROUBLE, RankSeat
from testbed.recorder.recorder import LogRecorder
from testbed.recorder.shim import Shim
from testbed.scripted_events import Clock


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
        seat.stay(DONE)
    except BaseException as error:  # noqa: BLE001 -- recorded, and the process ends below
        inside = shim.failed_op(error) if shim is not None else ""
        # Out of a torch.distributed call: the model's traffic meets the subject's mistakes too.
        trouble = "" if inside else trouble_of(error, seat.scenario.subject)
        words = last_words(error)
        seat.log.open_reserve()
        recorder.add(Raised, *words[:3], inside, words.frames, trouble)
        if trouble:
            seat.link.sendall(TROUBLE)
        else:
            seat.stay(BROKE)  # in the except: what the frames hold stays alive, sends above all
    os._exit(0)


def _versions(subject: str) -> dict[str, str]:
    return {
        "testbed": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        **subjects.versions(subject),
    }
