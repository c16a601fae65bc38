"""What an isolated case costs here, against one torchrun per case, side by side in one run.

    python -m testbed.bench_harness [--world 4] [--cases 40] [--launches 5] [--json OUT]

A null case (one step, nothing to transfer) runs from fork to verdict on fresh ranks, its record
written to disk. Between batches of those, torchrun is started for one case of the same world and
groups, the way a test would do it without a fleet. At the end one case with 64 real ranks (pp8tp8)
runs on the same number of hosts. Figures are milliseconds of wall time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tabulate import tabulate

from reports.results import check_json, write_json
from testbed.errors import BadInput, EnvironmentFault
from testbed.runs import RunStore, check_world, execute
from testbed.scenario import Scenario
from testbed.topology import Topology
from testbed.world import Fleet

_LAUNCH_LIMIT_S = 120.0
_WIDE = Topology(pp=8, tp=8)


def null_case(topology: Topology) -> Scenario:
    """One step in which there is nothing to transfer."""
    return Scenario(name="null", topology=topology, steps=1, workload={"kind": "scripted"})


def topology_of(world: int) -> Topology:
    """Two stages where the world can be halved, one otherwise."""
    return Topology(pp=2, tp=world // 2) if world % 2 == 0 else Topology(tp=world)


def measure(world: int, cases: int, launches: int) -> dict[str, Any]:
    """All figures; raises EnvironmentFault if a case or a launch fails."""
    null = null_case(topology_of(world))
    fleet_ms: list[float] = []
    torchrun_ms: list[float] = []
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as folder:
        store = RunStore(Path(folder))
        with Fleet(world) as fleet:
            _clean_run(fleet, null, store)  # the first case pays for what later ones find ready
            for launch in range(launches):
                batch = cases // launches + (launch < cases % launches)
                fleet_ms += [timed_ms(lambda: _clean_run(fleet, null, store)) for _ in range(batch)]
                torchrun_ms.append(timed_ms(lambda: _launch(world)))
        with Fleet(world, oversubscribe=True) as fleet:
            wide_ms = [
                timed_ms(lambda: _clean_run(fleet, null_case(_WIDE), store)) for _ in range(3)
            ]
    return {
        "world": world,
        "fleet_case_ms": _spread(fleet_ms),
        "torchrun_case_ms": _spread(torchrun_ms),
        "times_cheaper": statistics.median(torchrun_ms) / statistics.median(fleet_ms),
        "wide_case_ms": _spread(wide_ms),
    }


def timed_ms(action: Callable[[], object]) -> float:
    """Wall time of one call in milliseconds."""
    began = time.monotonic()
    action()
    return (time.monotonic() - began) * 1e3


def _clean_run(fleet: Fleet, scenario: Scenario, store: RunStore) -> None:
    result = execute(fleet, scenario, store)
    if not result.as_expected:
        raise EnvironmentFault(f"{scenario.case_id}: {result.why_not}: {result.verdict.summary}")


def _launch(world: int) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    worker = ["--nproc-per-node", str(world), "-m", "testbed.bench_harness", "--as-rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*launcher, *worker],
        capture_output=True,
        text=True,
        timeout=_LAUNCH_LIMIT_S,
        env=environment,
    )
    if run.returncode != 0:
        said = run.stderr.strip().splitlines() or ["it said nothing"]
        raise EnvironmentFault(f"torchrun ended with exit status {run.returncode}: {said[-1]}")


def _as_rank() -> None:
    """One rank of the case that torchrun starts: the same groups, one reduction in each."""
    dist.init_process_group("gloo")
    for spec in topology_of(dist.get_world_size()).groups:
        group = dist.new_group(list(spec.ranks))
        if dist.get_rank() in spec.ranks:
            dist.barrier(group)
    dist.destroy_process_group()


def _spread(values_ms: list[float]) -> dict[str, float]:
    """count, median, smallest and largest."""
    return {
        "count": len(values_ms),
        "median": statistics.median(values_ms),
        "min": min(values_ms),
        "max": max(values_ms),
    }


def _table(found: dict[str, Any]) -> str:
    world = found["world"]
    names = {
        "fleet_case_ms": f"one isolated case, {world} ranks, fork to verdict",
        "torchrun_case_ms": f"one torchrun per case, {world} ranks",
        "wide_case_ms": f"{_WIDE}: {_WIDE.size} ranks on {world} hosts, fork to verdict",
    }
    cells = [
        [name, *(f"{found[key][part]:.0f}" for part in ("median", "min", "max", "count"))]
        for key, name in names.items()
    ]
    table: str = tabulate(
        cells, ["", "median ms", "min", "max", "runs"], "simple", disable_numparse=True
    )
    return f"{table}\n\na case on the fleet is {found['times_cheaper']:.0f} times cheaper"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 0, 2 for bad input, 3 if the environment failed."""
    parser = argparse.ArgumentParser(prog="bench_harness", description=__doc__.split("\n")[0])
    parser.add_argument("--world", type=int, default=4, metavar="N")
    parser.add_argument("--cases", type=int, default=40, metavar="N")
    parser.add_argument("--launches", type=int, default=5, metavar="N")
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.as_rank:
        _as_rank()
        return 0
    try:
        check_world(options.world, "--world")
        if options.json is not None:
            check_json(options.json)
        found = measure(options.world, options.cases, options.launches)
        print(_table(found))
        if options.json is not None:
            write_json(found, options.json)
    except BadInput as error:
        print(f"bench_harness: {error}", file=sys.stderr)
        return 2
    except EnvironmentFault as error:
        print(f"bench_harness: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
