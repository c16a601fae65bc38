"""The life of a rank of the benchmark: real groups, the plan's loop, its figures, the exit."""

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from testbed.bench.plans import CostPlan, PipelinePlan, SkewPlan, plan_of
from testbed.bench.ranks import cost, pipeline, skew
from testbed.bench.ranks.pause import sharpen_sleep
from testbed.bench.ranks.place import Place
from testbed.model.events import Measured, Raised
from testbed.rank.blame import last_words
from testbed.rank.groups import meet
from testbed.rank.spec import DONE, GO, READY, TROUBLE, RankSeat
from testbed.recorder.recorder import LogRecorder
from testbed.scripted_events import Clock

Figures = Iterator[dict[str, Any]]
"""What a loop yields: one entry a round, sent home at once."""


def run_rank(seat: RankSeat) -> NoReturn:
    """Measure what the seat's plan says and never return: the process ends here."""
    faulthandler.register(signal.SIGUSR1, file=seat.stack_fd, all_threads=True, chain=True)
    recorder = LogRecorder(seat.log, Clock())
    try:
        torch.set_num_threads(1)
        sharpen_sleep()
        _, groups, names = meet(seat)
        what, figures = _loop(Place(seat.scenario, seat.rank, groups, names))
        seat.link.sendall(READY)
        if seat.link.recv(1) != GO:
            os._exit(0)
        for entry in figures():
            recorder.add(Measured, what, entry)
    except BaseException as error:  # noqa: BLE001 -- recorded, and the process ends below
        words = last_words(error)
        trouble = f"{words.type}: {words.message}"
        seat.log.open_reserve()
        recorder.add(Raised, *words[:3], "", words.frames, trouble)
        seat.link.sendall(TROUBLE)
        os._exit(0)
    # An exit now would cut connections that slower ranks still read from.
    seat.link.sendall(DONE)
    seat.link.recv(1)
    os._exit(0)


def _loop(place: Place) -> tuple[str, Callable[[], Figures]]:
    plan = plan_of(place.scenario)
    if isinstance(plan, CostPlan):
        return "cost", lambda: cost.figures(plan, place)
    if isinstance(plan, SkewPlan):
        return "skew", lambda: skew.figures(plan, place)
    assert isinstance(plan, PipelinePlan)
    return "pipeline", lambda: pipeline.figures(plan, place)
