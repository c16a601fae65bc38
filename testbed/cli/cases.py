"""Running cases one after the other, as ``run`` and ``replay`` do."""

import argparse
import contextlib
import sys

from reports.session import keep
from testbed.cli.telling import status, tell
from testbed.console.options import RAISE_WORLD
from testbed.fleet import MakesFleet
from testbed.model.errors import EnvironmentFault, naming
from testbed.model.scenario import Scenario
from testbed.sessions import nodes
from testbed.sessions.execute import execute, prepare
from testbed.sessions.result import RunResult
from testbed.sessions.store import DEFAULT_ROOT, RunStore, shown
from testbed.sessions.world import RunsCases, check_world

Named = tuple[str, Scenario]
"""A scenario and the file it was read from."""


def run_cases(
    cases: list[Named],
    options: argparse.Namespace,
    world: int,
    oversubscribe: bool,
    make_fleet: MakesFleet,
) -> int:
    # Everything is checked first: the last of twenty files must not be refused after a minute.
    check_world(world, "--world")
    for where, case in cases:
        with naming(where):
            case.topology.check_fits(world, oversubscribe, RAISE_WORLD)
        prepare(case, where)
    store = RunStore(DEFAULT_ROOT)
    results: list[RunResult] = []
    lost = ""
    try:
        with _fleet(options, world, oversubscribe, make_fleet) as fleet:
            for count, (_, case) in enumerate(cases, 1):
                _progress(f"[{count}/{len(cases)}] {case.case_id}")
                result = execute(fleet, case, store)
                results.append(result)
                lost = lost or result.lost
    finally:
        _progress("")
        # Also after an error half way: what has run is told.
        if results:
            rows = tell(results, options, world, "" if lost else shown(store.folder))
            if not lost:
                keep(rows, world, store.folder)
        store.close()
    if lost:
        raise EnvironmentFault(lost)
    return status(rows)


def _fleet(
    options: argparse.Namespace, world: int, oversubscribe: bool, make_fleet: MakesFleet
) -> contextlib.AbstractContextManager[RunsCases]:
    if options.listen is not None:
        return nodes.awaited_fleet(world, vars(options), oversubscribe=oversubscribe)
    return make_fleet(world, oversubscribe=oversubscribe, port=options.port)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", flush=True, file=sys.stderr)
