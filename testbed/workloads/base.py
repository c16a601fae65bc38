"""What a workload is, and the place it acts in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from testbed.model.scenario import Call, Scenario
from testbed.recorder.recorder import Recorder
from testbed.scripted_events import Clock

if TYPE_CHECKING:
    from testbed.cache import KVCache, TransferController
    from testbed.subjects.base import Subject


@dataclass(frozen=True)
class Hooks:
    """Where faults take hold of a rank's loop; several at one place act in the order of the list.

    step: at the start of each step. rounds: given how many rounds of the subject's check this step
    has (one), how many it really has. round: before each round. after: when the step is over. lags:
    whether the stage is a microbatch behind in this step; asked only where it can be. inside: in
    the middle of every ``torch.distributed`` call, with its name: it was entered and has not begun.
    close: after the last step, before the books are closed. exit: after that, the last thing a
    rank does.
    """

    step: list[Callable[[], None]] = field(default_factory=list)
    rounds: list[Callable[[int], int]] = field(default_factory=list)
    round: list[Callable[[], None]] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    lags: list[Callable[[], bool]] = field(default_factory=list)
    inside: list[Callable[[str], None]] = field(default_factory=list)
    close: list[Callable[[], None]] = field(default_factory=list)
    exit: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class Bench:
    """One rank's parts, before a subject exists. Faults take hold here.

    controller: None on a rank without one.
    """

    scenario: Scenario
    rank: int
    clock: Clock
    recorder: Recorder
    cache: "KVCache"
    controller: "TransferController | None"
    hooks: Hooks = field(default_factory=Hooks)


@dataclass(frozen=True)
class Stage:
    """What a running workload acts on: the rank's parts and the subject on top of them."""

    bench: Bench
    subject: "Subject"

    @property
    def cache(self) -> "KVCache":
        """The rank's cache."""
        return self.bench.cache

    @property
    def controller(self) -> "TransferController | None":
        """The controller as the subject has it now; nothing is enqueued where it is None."""
        return self.subject.controller


class Workload(Protocol):
    """A workload running on one rank."""

    def step(self) -> None:
        """Do this step's share: admit requests, enqueue transfers."""

    def asked(self, call: Call) -> Sequence[str]:
        """Keys that a question among a scenario's ``calls`` may be about by now, the same on every
        rank: requests that wait for a prefetch, loads.
        """

    def locked(self) -> list[int]:
        """Node ids on which the workload itself holds a device lock, one entry a lock."""


class Spec(Protocol):
    """A workload as parsed from its scenario: checked, the same on every rank."""

    @property
    def backup_after(self) -> int:
        """Steps from a completed write to the ACK of its backup to storage."""

    def begin(self, stage: Stage) -> Workload:
        """Set up on one rank, before the first step."""
