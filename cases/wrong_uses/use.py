"""A small program on a few ranks, and how it becomes a subject of the testbed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from testbed.cache import KVCache, TransferController
from testbed.model.scenario import Expect, Scenario
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome
from testbed.protocols import Groups
from testbed.subjects import Map

Body = Callable[[Groups, int], object]
"""``(groups, step) -> result``: one rank's share of one step."""


@dataclass(frozen=True)
class First:
    """The first divergence that must be told. verdict: and what it makes of the run. oracle: who
    tells it. channel: group or pipe. minority: the ranks to look at.
    """

    verdict: Outcome
    step: int
    channel: str
    ordinal: int
    minority: tuple[int, ...]
    oracle: str | None = None


@dataclass(frozen=True)
class Use:
    """One program. where: ``<module>:<name>`` of this very object. right: what each rank would have
    in the end if its peers had meant the same; none where that cannot be said. deadline_ms: of a
    run that can only end there.
    """

    name: str
    what: str
    where: str
    body: Body
    first: First | None = None
    why: str = ""
    ranks: int = 2
    steps: int = 1
    right: Mapping[int, object] = field(default_factory=dict)
    deadline_ms: int = 10_000

    @property
    def topology(self) -> Topology:
        """One stage: its ``tp[pp0]`` has the same members as the ``world``."""
        return Topology(1, self.ranks, 1)

    def scenario(self) -> Scenario:
        """A case that does nothing but run the program."""
        first = self.first
        expect = Expect(first.verdict, first.oracle, first.step) if first else Expect(Outcome.OK)
        return Scenario(
            name=self.name,
            comment=self.what,
            topology=self.topology,
            subject=self.where,
            steps=self.steps,
            workload={"kind": "scripted"},
            deadline_ms=self.deadline_ms,
            expect=msgspec.structs.replace(expect, why=self.why),
        )

    def __call__(
        self,
        cache: KVCache | None,
        controller: TransferController | None,
        groups: Groups,
        scenario: Scenario | None,
    ) -> "Program":
        """The subject of one rank."""
        return Program(self, groups)


class Program:
    """The program on one rank, with the face of a subject: it has no cache and keeps no books."""

    def __init__(self, use: Use, groups: Groups) -> None:
        self.promises: dict[str, Any] = {}
        self.controller: TransferController | None = None
        self.result: object = None
        self._use = use
        self._groups = groups
        self._step = 0

    def check_hicache_events(self) -> None:
        """One step of the program."""
        self.result = self._use.body(self._groups, self._step)
        self._step += 1

    def drain_sends(self) -> None:
        """It waits for its own sends or, being wrong, does not."""

    def outstanding_sends(self) -> int:
        """None that are kept."""
        return 0

    def track_write(self, node_id: int) -> None:
        """There are no transfers."""

    def track_load(self, node_id: int) -> None:
        """There are no transfers."""

    def track_prefetch(self, operation: Any) -> None:
        """There are no queries."""

    def on_split(self, old_id: int, new_prefix_id: int) -> None:
        """There are no nodes."""

    def pending(self) -> dict[Map, list[int] | list[str]]:
        """Nothing, ever."""
        return {"write": [], "load": [], "backup": [], "prefetch": []}
