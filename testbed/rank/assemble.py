"""Puts one rank together and runs its steps: clock, cache, controller, faults, subject,
workload.
"""

from collections.abc import Callable
from typing import Any

from testbed import faults, subjects, workloads
from testbed.cache import KVCache, TransferController, shard_of
from testbed.device import CPU, Device
from testbed.model.events import Begin, End, Final
from testbed.model.scenario import Scenario, select
from testbed.protocols.groups import Groups
from testbed.rank.calls import LoopCalls
from testbed.recorder.recorder import Recorder
from testbed.scripted_events import Clock
from testbed.subjects import face
from testbed.subjects.base import Subject
from testbed.workloads.base import Bench, Stage, Workload
from testbed.workloads.traffic import Traffic


class RankContext:
    """One rank's parts, and the loop over them. The order in a step: what the devices did since the
    last step, the model's traffic, new transfers, the subject's check, then what else the scenario
    has it called for.
    """

    def __init__(
        self, bench: Bench, subject: Subject, workload: Workload, traffic: Traffic | None = None
    ) -> None:
        self.bench = bench
        self.subject = subject
        self.workload = workload
        self.traffic = traffic
        self.calls = LoopCalls(Stage(bench, subject), workload)

    def run_step(self) -> None:
        """One scheduler step. Lets through whatever the subject raises."""
        self.begin_step()
        if self.traffic is not None:
            self.traffic.model()
        self.workload.step()
        self.record_begin()
        self.check()
        self.calls.make()
        self.record_end()
        _call(self.bench.hooks.after)

    def begin_step(self) -> None:
        """The clock ticks; transfers whose events became ready arrive."""
        self.bench.clock.tick()
        _call(self.bench.hooks.step)
        if self.bench.controller is not None:
            self.bench.controller.progress()

    def check(self) -> None:
        """This step's round of the subject's check; none or several if a fault has it so."""
        rounds = 1
        for change in self.bench.hooks.rounds:
            rounds = change(rounds)
        for _ in range(rounds):
            _call(self.bench.hooks.round)
            self.subject.check_hicache_events()

    def record_begin(self) -> None:
        """What the queues hold before the subject looks at them."""
        controller = self.subject.controller
        writes, loads = _acks(controller)
        self.bench.recorder.add(
            Begin,
            [[ack.finish_event.key, ack.finish_event.peek()] for ack in writes],
            [[ack.finish_event.key, ack.finish_event.peek()] for ack in loads],
            self._storage_sizes(),
        )

    def record_end(self) -> None:
        """What is left after it did."""
        writes, loads = _acks(self.subject.controller)
        pending = self._pending_keys()
        self.bench.recorder.add(
            End,
            [ack.finish_event.key for ack in writes],
            [ack.finish_event.key for ack in loads],
            pending["write"],
            pending["load"],
            self._storage_sizes(),
            face.outstanding_sends(self.subject),
            self.bench.cache.lock_totals(),
            self.bench.cache.usable_digest(),
        )

    def finish(self) -> None:
        """Drain the sends and close the books."""
        _call(self.bench.hooks.close)
        if self.traffic is not None:
            self.traffic.drain()
        self.subject.drain_sends()
        books = self.bench.cache.pages()
        if self.bench.controller is not None:
            for entry, pages in self.bench.controller.host_books().items():
                books["host"][entry] += pages
            waiting = [str(name) for name in face.pending(self.subject)["prefetch"]]
            books["host"]["flight"] += self.bench.controller.held_by_prefetches(waiting)
        self.bench.recorder.add(
            Final,
            books["device"],
            books["host"],
            self.bench.cache.lock_totals(),
            self._explained_locks(),
            self._pending_keys(),
            face.outstanding_sends(self.subject),
        )
        _call(self.bench.hooks.exit)

    def _storage_sizes(self) -> dict[str, int]:
        controller = self.subject.controller
        if controller is None or not self.bench.scenario.storage:
            return {}
        return {name: waiting.qsize() for name, waiting in controller.storage_queues().items()}

    def _pending_keys(self) -> dict[str, list[str]]:
        pending = face.pending(self.subject)
        cache, controller = self.bench.cache, self.bench.controller
        backups = controller.backups() if controller is not None and pending["backup"] else {}
        keys: dict[str, list[str]] = {"prefetch": [str(name) for name in pending["prefetch"]]}
        for queue in ("write", "load"):
            transfers = [(each, cache.transfer(queue, int(each))) for each in pending[queue]]
            keys[queue] = [flight.key if flight else str(each) for each, flight in transfers]
        keys["backup"] = [
            backups[int(each)].key if int(each) in backups else str(each)
            for each in pending["backup"]
        ]
        return keys

    def _explained_locks(self) -> list[int]:
        """Sums of [lock_ref, host_lock_ref] that the pending maps and the workload account for."""
        pending = face.pending(self.subject)
        cache, controller = self.bench.cache, self.bench.controller
        writes, loads = [[int(each) for each in pending[queue]] for queue in ("write", "load")]
        device = [*writes, *loads, *self.workload.locked()]
        host = list(loads)
        if controller is not None:
            by_key = {node.key: node.id for node in cache.tree.nodes.values()}
            backups = controller.backups()
            held = [backups.get(int(each)) for each in pending["backup"]]
            host += [by_key.get(backup.node_key, 0) for backup in held if backup is not None]
            asked = [controller.prefetches.get(str(name)) for name in pending["prefetch"]]
            host += [operation.node_id for operation in asked if operation is not None]
        return [cache.lock_weight(device), cache.lock_weight(host)]


def _call(hooks: list[Callable[[], None]]) -> None:
    for hook in hooks:
        hook()


def _acks(controller: TransferController | None) -> tuple[list[Any], list[Any]]:
    if controller is None:
        return [], []
    return controller.ack_write_queue, controller.ack_load_queue


def assemble(
    scenario: Scenario,
    rank: int,
    clock: Clock,
    recorder: Recorder,
    groups: Groups,
    hardware: Device = CPU,
) -> RankContext:
    """Build one rank of a scenario, its pools on ``hardware``. Raises BadInput where the scenario
    cannot be run.
    """
    plan = workloads.parse(scenario)
    planned_faults = faults.parse(scenario.faults)
    scenario = faults.adapted(planned_faults, scenario)
    topology = scenario.topology
    cache = KVCache(scenario.sizes, shard_of(scenario.sizes, topology, rank), recorder, hardware)
    sidecars = [pool.name for pool in scenario.sidecars if rank in select(pool.on, topology)]
    controller = TransferController(cache, clock, recorder, sidecars, plan.backup_after)
    bench = Bench(scenario, rank, clock, recorder, cache, controller)
    faults.install(planned_faults, bench)
    subject = subjects.make(scenario.subject, cache, bench.controller, groups, scenario)
    traffic = Traffic(groups, bench) if scenario.carries_traffic else None
    return RankContext(bench, subject, plan.begin(Stage(bench, subject)), traffic)
