"""Where a rank of the benchmark stands, and how it puts a subject there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from testbed.model.events import Event
from testbed.model.scenario import Scenario, Sizes
from testbed.model.topology import GroupSpec
from testbed.protocols.groups import Groups
from testbed.rank.assemble import RankContext, assemble
from testbed.recorder.recorder import Recorder
from testbed.scripted_events import Clock

# Bytes are moved for real; a page of one number keeps them out of the figures.
_PAGE = {"page_tokens": 1, "layers": 1, "heads": 1, "head_dim": 1}

# Taken before any layer is put over them.
_barrier = dist.barrier


class NullRecorder:
    """Records nothing."""

    def add(self, kind: type[Event], *fields: Any) -> None:
        """Forget it."""


@dataclass(frozen=True)
class Place:
    """One rank. names: of its process groups, as the recorder wants them."""

    scenario: Scenario
    rank: int
    groups: Groups
    names: Mapping[Any, GroupSpec]

    def subject(
        self,
        name: str,
        recorder: Recorder | None = None,
        clock: Clock | None = None,
        pages: int = 64,
        workload: dict[str, Any] | None = None,
    ) -> RankContext:
        """A subject with a cache and a controller of its own, over this rank's groups. Without a
        recorder nothing is recorded. workload: none by default."""
        scenario = self.scenario.but(
            subject=name,
            workload=workload or {"kind": "scripted"},
            sizes=Sizes(**_PAGE, device_pages=pages, host_pages=pages),
        )
        return assemble(
            scenario, self.rank, clock or Clock(), recorder or NullRecorder(), self.groups
        )

    def meet(self) -> None:
        """Wait for every other rank, unseen by any recorder."""
        if self.groups.topology.size > 1:
            _barrier()
