"""What a workload is, and the place it acts in."""

from dataclasses import dataclass
from typing import Protocol

from testbed.cache import KVCache, TransferController
from testbed.events import Clock
from testbed.scenario import Scenario
from testbed.subjects.base import Subject
from testbed.trace.recorder import Recorder


@dataclass
class Bench:
    """One rank's parts, before a subject exists. Faults take hold here.

    controller: None on a rank without one.
    """

    scenario: Scenario
    rank: int
    clock: Clock
    recorder: Recorder
    cache: KVCache
    controller: TransferController | None


@dataclass(frozen=True)
class Stage:
    """What a running workload acts on: the rank's parts and the subject on top of them."""

    bench: Bench
    subject: Subject

    @property
    def cache(self) -> KVCache:
        """The rank's cache."""
        return self.bench.cache

    @property
    def controller(self) -> TransferController | None:
        """The controller as the subject has it now; nothing is enqueued where it is None."""
        return self.subject.controller


class Workload(Protocol):
    """A workload running on one rank."""

    def step(self) -> None:
        """Do this step's share: admit requests, enqueue transfers."""

    def locked(self) -> list[int]:
        """Node ids on which the workload itself holds a device lock, one entry a lock."""


class Spec(Protocol):
    """A workload as parsed from its scenario: checked, the same on every rank."""

    @property
    def backup_after(self) -> int:
        """Steps from a completed write to the ACK of its backup to storage."""

    def begin(self, stage: Stage) -> Workload:
        """Set up on one rank, before the first step."""
