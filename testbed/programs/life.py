"""The life of a rank that runs a program: what torchrun would give it, the recorder, the program,
its result, the exit.
"""

import faulthandler
import importlib
import os
import platform
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from testbed import __version__
from testbed.model.events import About, Begin, End, Final, Measured, Raised
from testbed.programs.breaks import install
from testbed.programs.place import take_place
from testbed.programs.plan import parts_of, plan_of
from testbed.rank.blame import last_words
from testbed.rank.spec import BROKE, DONE, GO, READY, TROUBLE, RankSeat
from testbed.recorder import ownership
from testbed.recorder.recorder import LogRecorder
from testbed.recorder.shim import Shim
from testbed.scripted_events import Clock

RESULT, BROKEN = "result", "break"
"""Kinds of Measured: what the program returned, under ``value``; a damage that took effect."""

_NO_POOL = {"total": 0, "free": 0, "tree": 0, "flight": 0}


def run_rank(seat: RankSeat) -> NoReturn:
    """Run the seat's program as its rank and never return: the process ends here."""
    faulthandler.register(signal.SIGUSR1, file=seat.stack_fd, all_threads=True, chain=True)
    clock = Clock()
    recorder = LogRecorder(seat.log, clock)
    shim: Shim | None = None
    try:
        torch.set_num_threads(1)
        plan = plan_of(seat.scenario)
        take_place(seat)
        versions = {
            "testbed": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }
        recorder.add(About, {}, versions, recorder.born_us)
        if plan.recorded:
            shim = _recording(recorder, seat.rank)
        install(
            [one for one in plan.breaks if one.rank == seat.rank],
            lambda told: recorder.add(Measured, BROKEN, {"call": told}),
        )
    except BaseException as error:  # noqa: BLE001 -- recorded, and the process ends below
        _raised(seat, recorder, error, trouble=f"{type(error).__name__}: {error}")
        seat.link.sendall(TROUBLE)
        os._exit(0)
    try:
        program = _loaded(seat.scenario.subject)
        seat.link.sendall(READY)
        if seat.link.recv(1) != GO:
            os._exit(0)
        clock.tick()
        recorder.add(Begin, [], [], {})
        result = program(**plan.args)
        recorder.add(Measured, RESULT, {"value": result})
        recorder.add(End, [], [], [], [], {}, 0, [0, 0], 0)
        recorder.add(Final, _NO_POOL, _NO_POOL, [0, 0], [0, 0], {}, 0)
        seat.stay(DONE)
    except BaseException as error:  # noqa: BLE001 -- the program's own, as it may be any
        inside = shim.failed_op(error) if shim is not None else ""
        _raised(seat, recorder, error, inside)
        seat.stay(BROKE)  # in the except: what the frames hold stays alive, sends above all
    os._exit(0)


def _recording(recorder: LogRecorder, rank: int) -> Shim:
    """The recorder in place, before the program makes its first group."""
    shim = Shim(recorder, rank, {})
    shim.install()
    return shim


def _loaded(named: str) -> Callable[..., Any]:
    module, function = parts_of(named)
    program: Callable[..., Any] = getattr(importlib.import_module(module), function)
    ownership.claim_package(module)  # wherever it is installed, it is what is looked at
    return program


def _raised(
    seat: RankSeat, recorder: LogRecorder, error: BaseException, inside: str = "", trouble: str = ""
) -> None:
    words = last_words(error)
    seat.log.open_reserve()
    recorder.add(Raised, *words[:3], inside, words.frames, trouble)
