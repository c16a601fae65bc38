"""A whole case on ranks forked from the test itself: what a fleet does, in its simplest form.

The ranks inherit whatever the test has put in place of something; a fleet's hosts would not.
"""

import os
import socket
from pathlib import Path

from testbed.model.events import About, Raised
from testbed.model.record import RankRecord, RunRecord
from testbed.model.scenario import Scenario
from testbed.rank.life import run_rank
from testbed.rank.spec import DONE, GO, READY, RELEASE, RankSeat, RunRank
from testbed.recorder.log import SharedLog, entries
from testbed.recorder.recorder import event_of

_LOG_BYTES = 1 << 22
LIMIT_S = 60.0


def run_case(scenario: Scenario, folder: Path, life: RunRank = run_rank) -> RunRecord:
    """Run a case that comes to its end; its record. Fails if a rank does not get ready or done.
    life: what its ranks do.
    """
    store = folder / f"store-{scenario.case_id}"
    store.mkdir()
    logs: list[SharedLog] = []
    links: list[socket.socket] = []
    pids: list[int] = []
    for rank in range(scenario.topology.size):
        log = SharedLog(_LOG_BYTES)
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        stack_fd = os.memfd_create("stack")
        pid = os.fork()
        if pid == 0:
            try:
                for link in (ours, *links):  # so that a rank ends when the test does
                    link.close()
                life(RankSeat(scenario, rank, 0, str(store), None, log, theirs, stack_fd))
            finally:
                os._exit(1)  # whatever it raised: this is not the test
        os.close(stack_fd)
        theirs.close()
        logs.append(log)
        links.append(ours)
        pids.append(pid)
    try:
        for said, answer in ((READY, GO), (DONE, RELEASE)):
            for rank, link in enumerate(links):
                assert link.recv(1) == said, _why(logs[rank])
            for link in links:
                link.sendall(answer)
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0
        pids.clear()
    finally:
        for link in links:
            link.close()
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    ranks = tuple(
        RankRecord(rank, "done", tuple(event_of(entry) for entry in entries(log.committed())))
        for rank, log in enumerate(logs)
    )
    about = [event for event in ranks[0].events if isinstance(event, About)]
    told = (about[0].promises, about[0].versions) if about else ({}, {})
    return RunRecord(scenario, ranks, "finished", 0.0, *told)


def _why(log: SharedLog) -> str:
    events = [event_of(entry) for entry in entries(log.committed())]
    raised = [event for event in events if isinstance(event, Raised)]
    return raised[-1].traceback if raised else "it ended without a word"
