"""Measures all contenders side by side and prints two tables: null cases, and faults."""

import contextlib
import importlib.util
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from reports.progress import Bar, progress
from reports.results import check_json, interpreter, write_json
from testbed.bench import machine
from testbed.console import output
from testbed.console.options import Parser
from testbed.fleet import Fleet
from testbed.measure.harness.case import Kind
from testbed.measure.harness.contender import Contender, Ended
from testbed.measure.harness.driven import Driven
from testbed.measure.harness.fleet import OnFleet
from testbed.measure.harness.torchrun import OneTorchrun
from testbed.model.errors import BadInput
from testbed.model.exit_status import AS_EXPECTED
from testbed.model.topology import Topology
from testbed.sessions.store import RunStore
from testbed.sessions.world import DEFAULT_WORLD, check_world

_WIDE = Topology(pp=8, tp=8)
_LONGEST_PATIENCE_S = 600
_FAULTS = (Kind.CRASH, Kind.SKIPPED, Kind.LIVES_ON)
_NEEDS = "expecttest"
_LACKING = (
    f"MultiProcessTestCase and MultiProcContinuousTest are left out: {_NEEDS} is not installed "
    "(pip install -r requirements-harness.txt)"
)


def contenders(fleet: OnFleet, world: int) -> list[Contender]:
    """All that can be measured here, this testbed first."""
    found: list[Contender] = [fleet, OneTorchrun(world)]
    found.append(Driven("spawn", "mp.spawn", world, isolates=True, warm=False))
    if importlib.util.find_spec(_NEEDS):
        found += [
            Driven("multiprocess", "MultiProcessTestCase", world, isolates=True, warm=False),
            Driven("continuous", "MultiProcContinuousTest", world, isolates=False, warm=True),
        ]
    return found


def measure(world: int, cases: int, launches: int, patience_s: float) -> dict[str, Any]:
    """All figures. Null cases go in turns, A B C A B C. Raises EnvironmentFault."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="testbed-bench-"))
        store = RunStore(Path(folder))
        with Fleet(world) as fleet:
            ours = OnFleet(fleet, store, world)
            ours.null_ms(1)  # the first case pays for what later ones find ready
            every = contenders(ours, world)
            null_ms: dict[str, list[float]] = {each.name: [] for each in every}
            turns = len(every) * (launches + len(_FAULTS)) + 1
            bar = held.enter_context(progress("bench-harness", turns, unit="turns"))
            for launch in range(launches):
                for each in every:
                    bar.now(f"null case of {each.name}")
                    # Cheap ones run often enough to fill the time that dear ones take.
                    share = cases // launches + (launch < cases % launches)
                    cheap = each is ours or not each.isolates
                    null_ms[each.name] += each.null_ms(share if cheap else 1)
                    bar.advance()
            faults = {each.name: _faults(each, patience_s, bar) for each in every}
        with Fleet(world, oversubscribe=True) as fleet:
            bar.now(f"null case on {_WIDE}")
            wide_ms = OnFleet(fleet, store, world).wide_ms(_WIDE, 3)
            bar.advance()
    return {
        "world": world,
        "machine": machine.describe(),
        "patience_s": patience_s,
        "isolates": {each.name: each.isolates for each in every},
        "null_ms": {name: _spread(taken) for name, taken in null_ms.items()},
        "wide_ms": _spread(wide_ms),
        "faults": faults,
    }


def _faults(contender: Contender, patience_s: float, bar: Bar) -> dict[str, Any]:
    found = {}
    for kind in _FAULTS:
        bar.now(f"{kind.value} of {contender.name}")
        struck, after = contender.fault(kind, patience_s)
        found[kind.value] = {"struck": _plain(struck), "after": _plain(after)}
        bar.advance()
    return found


def _plain(case: Ended) -> dict[str, Any]:
    return {
        "ms": case.ms,
        "told": case.told,
        "passed": case.passed,
        "names_victim": case.names_victim,
    }


def _spread(values_ms: list[float]) -> dict[str, float]:
    """count, median, smallest and largest."""
    return {
        "count": len(values_ms),
        "median": statistics.median(values_ms),
        "min": min(values_ms),
        "max": max(values_ms),
    }


def tables(found: dict[str, Any]) -> str:
    """Both tables, and what can be read off them in a line."""
    return "\n\n".join((_header(found), _null_table(found), _fault_table(found), _in_words(found)))


def _header(found: dict[str, Any]) -> str:
    known = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    patience = f"gloo, one torch thread a rank, {found['patience_s']:g} s of patience for a verdict"
    return "\n".join(f"# {line}" for line in (found["command"], known, patience))


def _null_table(found: dict[str, Any]) -> str:
    ours = next(iter(found["null_ms"].values()))["median"]
    parts = ("median", "min", "max", "count")
    cells = [
        [name, "yes" if found["isolates"][name] else "no"]
        + [f"{of[part]:.0f}" for part in parts]
        + [f"{of['median'] / ours:.1f}"]
        for name, of in found["null_ms"].items()
    ]
    wide = found["wide_ms"]
    name = f"fleet, {_WIDE}: {_WIDE.size} ranks on {found['world']} hosts"
    cells.append([name, "yes", *(f"{wide[part]:.0f}" for part in parts), ""])
    heads = [f"a null case, {found['world']} ranks", "fresh", "median ms", "min", "max", "runs"]
    table: str = tabulate(cells, [*heads, "x fleet"], "simple", disable_numparse=True)
    return table


def _fault_table(found: dict[str, Any]) -> str:
    cells = []
    for name, kinds in found["faults"].items():
        for kind, case in kinds.items():
            struck, after = case["struck"], case["after"]
            cells.append(
                [
                    name,
                    kind,
                    _ms(struck["ms"], found["patience_s"]),
                    "yes" if struck["names_victim"] else "no",
                    _ms(after["ms"], None) if after["passed"] else "lost",
                    struck["told"][:90],
                ]
            )
    heads = ["a faulty case", "rank 1", "to verdict ms", "names it", "next case ms", "told"]
    table: str = tabulate(cells, heads, "simple", disable_numparse=True)
    return table


def _ms(ms: float | None, patience_s: float | None) -> str:
    if ms is not None:
        return f"{ms:.0f}"
    return "" if patience_s is None else f"> {patience_s * 1e3:.0f}"


def _in_words(found: dict[str, Any]) -> str:
    null = {name: of["median"] for name, of in found["null_ms"].items()}
    ours = next(iter(null.values()))
    return (
        "fresh: a case gets processes of its own, and their start is part of every figure\n"
        "x fleet: times the median of the fleet\n"
        "rank 1: crash: killed; skipped: leaves a collective out and ends; lives-on: and stays\n"
        "names it: the verdict names that rank; told: the first line of what was said\n"
        "next case: a sound one afterwards; lost: the harness did not come to another\n"
        f"a case on the fleet is {null[OneTorchrun.name] / ours:.0f} times cheaper than a torchrun"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 0, 2 for bad input, 3 if the environment failed."""
    return output.ended("bench-harness", lambda: _measured(argv))


def _measured(argv: Sequence[str] | None) -> int:
    parser = Parser(prog="bench-harness", description=__doc__)
    add = parser.add_argument
    add("--world", type=int, default=DEFAULT_WORLD, metavar="N")
    for name, default, of, told in (
        ("--cases", 40, "N", "null cases of harnesses that start nothing for one"),
        ("--launches", 5, "N", "null cases of those that start processes for each"),
        ("--patience", 30.0, "S", "seconds that a verdict may take"),
    ):
        text = f"{told} (default: %(default)s)"
        add(name, type=type(default), default=default, metavar=of, help=text)
    add("--json", metavar="OUT", help="also write JSON to this file, - for stdout")
    options = parser.parse_args(argv)
    check_world(options.world, "--world")
    if options.json is not None:
        check_json(options.json)
    if options.world < 2:
        raise BadInput(f"--world is {options.world}: rank 1 is struck, give 2 or more")
    if min(options.cases, options.launches) < 1:
        raise BadInput("--cases and --launches: give numbers from 1 on")
    if not 1 <= options.patience <= _LONGEST_PATIENCE_S:
        raise BadInput(
            f"--patience is {options.patience:g}: give seconds from 1 to {_LONGEST_PATIENCE_S}"
        )
    given = sys.argv[1:] if argv is None else argv
    command = f"{interpreter()} -m testbed.measure.harness {shlex.join(given)}".rstrip()
    found = {
        "command": command,
        **measure(options.world, options.cases, options.launches, options.patience),
    }
    stream = sys.stderr if options.json == "-" else sys.stdout
    print(tables(found), file=stream)
    if not importlib.util.find_spec(_NEEDS):
        print(f"\n{_LACKING}", file=stream)
    if options.json:
        write_json(found, options.json)
    return AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main())
