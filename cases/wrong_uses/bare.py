"""Runs a program on forked ranks with nothing of the testbed beneath it but the groups."""

import os
import pickle
import select
import signal
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NoReturn

import torch
from torch._C._distributed_c10d import set_debug_level_from_env

from cases.wrong_uses.use import Use
from testbed.death import die_with_parent
from testbed.rank.folder_store import FolderStore
from testbed.rank.groups import build_groups

Ended = Literal["returned", "raised", "died", "stuck"]

GLOO_TIMEOUT_S = 1.0
"""Of the groups; 30 minutes by default. What counts is whom it names, not when it comes."""

LIMIT_S = 6.0
"""For all ranks of a program; DETAIL waits for several timeouts one after the other."""

_BUILD_LIMIT = timedelta(seconds=30)


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: returned (result), raised (error: its type and first line), died
    (signal), stuck (had to be killed). late: it raised only when gloo's timeout was up.
    """

    ended: Ended
    result: object = None
    error: str = ""
    signal: int = 0
    late: bool = False


def run(use: Use, *, detail: bool) -> list[RankEnd]:
    """Each rank's end under plain gloo, or under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    with tempfile.TemporaryDirectory(prefix="testbed-") as folder:
        children = [_fork(use, rank, folder, detail) for rank in range(use.ranks)]
        try:
            return _watch(children)
        finally:
            for child in children:
                child.end()


class _Child:
    def __init__(self, pid: int, reading: int, release: int) -> None:
        self.pid = pid
        self.reading = reading
        self.release = release

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reading)
        os.close(self.release)

    def heard(self) -> RankEnd:
        """What it said when its pipe became readable."""
        said = b""
        while part := os.read(self.reading, 1 << 16):
            said += part
        if said:
            end: RankEnd = pickle.loads(said)
            return end
        # Not reaped here: ``end`` does that, and the number stays this child's until then.
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        if info.si_code == os.CLD_EXITED:
            return RankEnd("raised", error=f"left with status {info.si_status}")
        return RankEnd("died", signal=info.si_status)


def _fork(use: Use, rank: int, folder: str, detail: bool) -> _Child:
    reading, writing = os.pipe()
    waiting, release = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(parent)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch warns at length
        _rank(use, rank, folder, detail, writing, waiting)
    os.close(writing)
    os.close(waiting)
    return _Child(pid, reading, release)


def _rank(use: Use, rank: int, folder: str, detail: bool, writing: int, waiting: int) -> NoReturn:
    torch.set_num_threads(1)
    if detail:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        set_debug_level_from_env()
    store = FolderStore(folder, use.ranks, _BUILD_LIMIT)
    groups, _ = build_groups(use.topology, rank, store, timedelta(seconds=GLOO_TIMEOUT_S))
    program = use(None, None, groups, None)
    begun = time.monotonic()
    try:
        for _ in range(use.steps):
            program.check_hicache_events()
        end = RankEnd("returned", program.result)
    except SystemExit:
        os._exit(0)  # as it asked to
    except Exception as error:  # noqa: BLE001 -- whatever gloo says is what is measured
        late = time.monotonic() - begun > GLOO_TIMEOUT_S / 2
        end = RankEnd("raised", error=f"{type(error).__name__}: {_line(error)}", late=late)
    os.write(writing, pickle.dumps(end))
    os.close(writing)
    # Its connections stay open until all are heard, as if it went on with other work.
    os.read(waiting, 1)
    os._exit(0)


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else ""


def _watch(children: list[_Child]) -> list[RankEnd]:
    ends: dict[int, RankEnd] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(ends) < len(children):
        waiting = {one.reading: rank for rank, one in enumerate(children) if rank not in ends}
        readable, _, _ = select.select(list(waiting), [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            break
        for fd in readable:
            rank = waiting[fd]
            ends[rank] = children[rank].heard()
    return [ends.get(rank, RankEnd("stuck")) for rank in range(len(children))]
