"""A fleet without processes: makes up the record that a scenario's name asks for."""

from types import TracebackType

from testbed.model.errors import EnvironmentFault
from testbed.model.events import Begin, End, Event, Final, Request
from testbed.model.record import RankRecord, RunRecord
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology

SIGKILL = 9


def scenario(name: str = "null", topology: str = "pp2tp2", **more: object) -> Scenario:
    """A scenario with nothing to transfer."""
    nothing = {"kind": "scripted"}
    plain = Scenario(name=name, topology=Topology.parse(topology), workload=nothing, steps=2)
    return plain.but(**more)


class FakeFleet:
    """``crash*`` ends in rank 1 killed, ``environment*`` in EnvironmentFault, all else cleanly."""

    def __init__(self, world: int = 4, *, oversubscribe: bool = False, port: int = 0) -> None:
        self.world = world
        self.oversubscribe = oversubscribe
        self.ran: list[Scenario] = []
        self.closed = False
        self.lost = ""

    def __enter__(self) -> "FakeFleet":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """There is nothing to end."""
        self.closed = True

    def run(self, scenario: Scenario) -> RunRecord:
        """A made-up record."""
        self.ran.append(scenario)
        if scenario.name.startswith("environment"):
            raise EnvironmentFault("host 0 is gone")
        if scenario.name.startswith("crash"):
            return killed(scenario, 1)
        return clean(scenario)


def clean(scenario: Scenario) -> RunRecord:
    """Every rank did all its steps, and admitted a request without a page in the last."""
    ranks = tuple(
        RankRecord(
            rank, "done", (*_steps(scenario.steps), _request(scenario), _books(scenario.steps))
        )
        for rank in range(scenario.topology.size)
    )
    return RunRecord(scenario, ranks, "finished", wall_ms=12.3)


def killed(scenario: Scenario, victim: int) -> RunRecord:
    """One rank died by SIGKILL in its first step, the testbed stopped the others."""
    ranks = tuple(
        RankRecord(rank, "signal", _steps(1)[:1], signal=SIGKILL)
        if rank == victim
        else RankRecord(rank, "stopped", _steps(1))
        for rank in range(scenario.topology.size)
    )
    return RunRecord(scenario, ranks, "broken", wall_ms=45.6)


def _steps(count: int) -> tuple[Event, ...]:
    events: list[Event] = []
    for step in range(count):
        events.append(Begin(step, 0, [], [], {}))
        events.append(End(step, 0, [], [], [], [], {}, 0, [0, 0], 0))
    return tuple(events)


def _request(scenario: Scenario) -> Request:
    return Request(scenario.steps - 1, 0, "r0", 0, 0, 0)


def _books(step: int) -> Final:
    empty = {"total": 64, "free": 64, "tree": 0, "flight": 0}
    return Final(step, 0, empty, empty, [0, 0], [0, 0], {}, 0)
