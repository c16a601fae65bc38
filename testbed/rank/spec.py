"""What a host and the rank it forks agree on: the seat the rank is given, the bytes on their
link.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from testbed.model.scenario import Scenario
from testbed.recorder.log import SharedLog

# rank -> host: groups and cache are built; the loop is left in order; the subject raised; the
# testbed's own code failed, and the rank ends. An exit status says nothing: the subject chooses it.
# host -> rank: begin; exit.
READY, DONE, BROKE, TROUBLE = b"r", b"d", b"b", b"t"
GO, RELEASE = b"g", b"x"


@dataclass(frozen=True)
class RankSeat:
    """A forked rank's number and case, and what it shares with its host. store: folder of the
    FolderStore; where it is empty ``keys`` leads to the store that the controller holds for the
    case of that number.
    """

    scenario: Scenario
    rank: int
    case: int
    store: str
    keys: socket.socket | None
    log: SharedLog
    link: socket.socket
    stack_fd: int

    def stay(self, word: bytes) -> None:
        """Say how the loop ended, and wait with every connection open: an exit would cut them, and
        what slower ranks then still read, or not, would be up to the machine.
        """
        self.link.sendall(word)
        self.link.recv(1)

    def part(self) -> None:
        """In a process that the rank has forked: it neither writes the rank's record nor speaks to
        the host in the rank's place.
        """
        self.log.part()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for connection in (self.link, self.keys):
            if connection is not None:
                os.dup2(nowhere, connection.fileno())
        os.close(nowhere)


RunRank = Callable[[RankSeat], NoReturn]
