"""Subjects for the soak of faults that harm their process in ways no fault of a scenario does:
``testbed.measure.soak_subjects:<name>``. But for that harm each is the minimal cache, batched.
"""

import os
import signal
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from testbed import protocols
from testbed.protocols import Groups
from testbed.subjects.minimal import MinimalSubject

EXIT_STATUSES = (0, 1, 81, 82, 255)
"""Those that Python itself leaves with, those that mean something between rank and host, the last.
"""

_HARM_AT = 3
MANY_CALLS = 20_000


class _Harmful(MinimalSubject):
    """A victim does harm as its third step begins; ``_harm`` says what."""

    def __init__(self, cache: Any, controller: Any, groups: Groups, scenario: Any) -> None:
        protocol = protocols.make("batched", groups)
        super().__init__(cache, controller, protocol, scenario.storage, ())
        self._groups = groups
        self._steps = 0

    def check_hicache_events(self) -> None:
        """As the minimal subject's."""
        self._steps += 1
        if self._steps == _HARM_AT:
            self._harm()
        super().check_hicache_events()

    def _harm(self) -> None:
        raise NotImplementedError


class _Leaves(_Harmful):
    """A follower ends its process past all that Python would do then."""

    def __init__(self, status: int, *rank: Any) -> None:
        super().__init__(*rank)
        self._status = status

    def _harm(self) -> None:
        if self._groups.at.pp == 1:
            os._exit(self._status)


exit_0, exit_1, exit_81, exit_82, exit_255 = (partial(_Leaves, one) for one in EXIT_STATUSES)


class leaves_behind(_Harmful):
    """Every rank leaves a child and a daemon, deaf to SIGTERM and SIGHUP."""

    def _harm(self) -> None:
        _stay_for_ever()
        if os.fork() == 0:
            os.setsid()
            _stay_for_ever()
            os._exit(0)
        os.wait()


class talkative(_Harmful):
    """Thousands of collectives in one step: more than was reckoned with when the log was made."""

    def __init__(self, *rank: Any) -> None:
        super().__init__(*rank)
        self.promises = {}

    def _harm(self) -> None:
        for _ in range(MANY_CALLS):
            dist.all_reduce(torch.ones(1), group=self._groups.tp)


def _stay_for_ever() -> None:
    if os.fork() == 0:
        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        while True:
            time.sleep(3600)
