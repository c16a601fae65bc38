"""``python -m testbed bench``: measure, show, keep, compare.

Everything is kept in one folder: ``bench.json`` (all figures and all parameters), ``bench.md``, and
the pictures where matplotlib is installed.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from reports.progress import progress
from reports.results import interpreter, write_json
from testbed import subjects
from testbed.bench import (
    compare,
    cost,
    document,
    machine,
    plots,
    scaling,
    settings,
    stall,
    tables,
    throughput,
)
from testbed.bench.measure import awaited_fleet, fleet
from testbed.bench.measure import run as run_plan
from testbed.bench.plans import SEPARATOR, AnyPlan, Model, Setting, scenario_of
from testbed.device import gpus
from testbed.model.errors import BadInput, EnvironmentFault, brief
from testbed.model.exit_status import AS_EXPECTED
from testbed.model.topology import Topology
from testbed.sessions import nodes
from testbed.sessions.store import DEFAULT_ROOT, shown
from testbed.sessions.world import DEFAULT_WORLD, RunsCases, check_world

ROOT = DEFAULT_ROOT / "bench"
JSON_FILE, MARKDOWN_FILE = "bench.json", "bench.md"
_PROTOCOLS = "separate,batched,fused,deferred,local,world"

_MOST = 1_000_000_000
_LONGEST_STEP_US = 1_000_000

MakesFleet = Callable[[int], AbstractContextManager[RunsCases]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add = parser.add_argument
    add(
        "--world", type=int, default=DEFAULT_WORLD, metavar="N", help="ranks (default: %(default)s)"
    )
    add("--topology", metavar="T", help="such as pp4tp1 (default: two stages of half the world)")
    add("--subjects", default=_PROTOCOLS, metavar="S[,S]", help="default: %(default)s")
    add("--only", default=",".join(settings.SECTIONS), metavar="X[,X]", help="default: %(default)s")
    add(
        "--gain",
        default="separate,batched",
        metavar="A,B",
        help="the two of curve (B's gain over A) and scaling (default: %(default)s)",
    )
    add("--quick", action="store_true", help="few steps: to see that it works, not to believe it")
    add("--rounds", type=int, metavar="N", help="A B A B rounds (default: 20)")
    add(
        "--backend",
        choices=("gloo", "nccl"),
        default="gloo",
        help="what agreement and pipeline go over (default: %(default)s)",
    )
    add("--storage", action="store_true", help="with storage queues, agreed on as well")
    add("--seed", type=int, default=0, metavar="N", help="of the scenarios (default: %(default)s)")
    add("--max-ranks", type=int, default=32, metavar="N", help="of scaling (default: %(default)s)")
    add(
        "--compute",
        type=float,
        default=1.0,
        metavar="US",
        help="us per token and stage of throughput, modelled (default: %(default)s)",
    )
    add("--burn", action="store_true", help="compute keeps the core busy instead of sleeping")
    _model_options(parser)
    nodes.add_options(add)
    add("--json", metavar="OUT", help="also write the JSON to this file, - for stdout")
    add("--out", metavar="DIR", help=f"default: {ROOT}/<time>")
    add("--compare", metavar="OLD.json", help="this run against an earlier one")


def _model_options(parser: argparse.ArgumentParser) -> None:
    model, add = Model(), parser.add_argument
    for name, default, of, told in (
        ("--chunk", model.chunk_tokens, "TOKENS", "computed in a step at most"),
        ("--shared-prefix", model.shared_prefix, "FRACTION", "of an input found on host"),
        ("--kv-bytes", model.kv_bytes_per_token, "N", "of a token on a rank"),
        ("--link-gb-s", model.link_gb_s, "GB/S", "between device and host, each direction"),
        ("--link-latency", model.link_latency_us, "US", "of a transfer on that link"),
    ):
        text = f"{told}, modelled (default: %(default)s)"
        add(name, type=type(default), default=default, metavar=of, help=text)


def run(options: argparse.Namespace, _: object = None, make_fleet: MakesFleet = fleet) -> int:
    """Run the command; returns its exit status. Raises BadInput or EnvironmentFault."""
    work = _Work.of(options)
    earlier = None if options.compare is None else compare.earlier(options.compare)
    folder = _folder(options.out)
    loads = [machine.load()]
    sections: dict[str, Any] = {}
    try:
        with _fleet(options, make_fleet) as on:
            work.measure(on, sections)
    finally:
        if sections:  # also after an error half way: what was measured is told
            loads.append(machine.load())
            _tell(options, work, sections, loads, earlier, folder)
    return AS_EXPECTED


def _tell(
    options: argparse.Namespace,
    work: "_Work",
    sections: dict[str, Any],
    loads: list[float],
    earlier: document.Document | None,
    folder: Path,
) -> None:
    found = document.make(
        f"{interpreter()} -m testbed {shlex.join(sys.argv[1:])}",
        machine.describe(),
        {"before": loads[0], "after": loads[1], "calm": loads[0] <= work.calm_below},
        work.parameters(),
        sections,
    )
    comparison = compare.table(found, earlier) if earlier else None
    stream = sys.stderr if options.json == "-" else sys.stdout
    print(tables.terminal(found), file=stream)
    if comparison:
        print(f"\n{comparison.title}\n\n{comparison.text('simple')}\n", file=stream)
        print("\n".join(comparison.notes), file=stream)
    print(f"\n{_keep(found, folder)}", file=stream)
    if options.json:
        write_json(found, options.json)


def _fleet(
    options: argparse.Namespace, make_fleet: MakesFleet
) -> AbstractContextManager[RunsCases]:
    if options.listen is not None:
        return awaited_fleet(options.world, vars(options))
    return make_fleet(options.world)


def _folder(named: str | None) -> Path:
    """Where everything will be kept; one that is named must do before anything is measured."""
    if named is None:
        return ROOT / time.strftime("%Y%m%d-%H%M%S")
    if not named:
        raise BadInput("--out is empty: give a folder, or leave it out")
    folder = Path(named)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{folder}: cannot be kept ({error.strerror})") from error
    return folder


def _keep(found: document.Document, folder: Path) -> str:
    """Write everything into the folder; what is there, in a line or two."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(found, str(folder / JSON_FILE))
        try:
            pictures, lacking = plots.draw(found, folder), ""
        except ImportError:
            pictures, lacking = [], f"\n{plots.WHY_NOT}"
        shown_here = [name for name in pictures if name.endswith(".svg")]
        (folder / MARKDOWN_FILE).write_text(tables.markdown(found, shown_here), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{folder}: cannot be kept ({error.strerror})") from error
    kept = ", ".join([JSON_FILE, MARKDOWN_FILE, *pictures])
    return f"kept in {shown(folder)}: {kept}{lacking}"


class _Work:
    """What is to be measured, checked before anything is started."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._names = list(dict.fromkeys(options.subjects.split(SEPARATOR)))
        self._pair = settings.pair_of(options.gain)
        self._only = settings.sections_of(options.only)
        self._topology = _topology(options.topology, options.world)
        effort = settings.QUICK if options.quick else settings.FULL
        if options.rounds is not None:
            if options.rounds < 1:
                raise BadInput(f"--rounds is {options.rounds}: give a number from 1 on")
            effort = settings.Effort(options.rounds, effort.block, effort.point_s)
        self._effort = effort
        self._model = _model(options)
        self._setting = Setting(seed=options.seed, storage=options.storage, backend=options.backend)
        self._ranks_at_most = options.max_ranks
        every = list(dict.fromkeys([*self._names, *self._pair]))
        if options.backend == "nccl":
            self._check_nccl(every)
        for name in every:
            subjects.prepare(name)
        self._plans = self._planned()
        if not self._plans:
            raise BadInput(f"--only stall needs two stages: {self._topology} has one")
        for plan in self._plans.values():
            _check(plan, self._topology, self._setting)
        if "scaling" in self._plans and not scaling.topologies(self._ranks_at_most):
            raise BadInput(f"scaling over at most {self._ranks_at_most} ranks: give 2 or more")
        self._cores = machine.describe()["cores"] * (options.nodes or 1)
        self.calm_below = machine.CALM_LOAD * machine.describe()["cores"]

    @classmethod
    def of(cls, options: argparse.Namespace) -> "_Work":
        """Raises BadInput for what cannot be measured."""
        check_world(options.world, "--world")
        nodes.check(vars(options))
        return cls(options)

    def _check_nccl(self, names: Sequence[str]) -> None:
        if self._options.listen is not None:
            raise BadInput("--backend nccl finds its ranks on one machine only: leave --listen out")
        self._ranks_at_most = min(gpus.check_usable(), self._ranks_at_most)
        gpus.check_one_each(self._topology)
        for name in names:
            subjects.check_places_tensors(name)

    def measure(self, on: RunsCases, sections: dict[str, Any]) -> None:
        """All sections, each entered in ``sections`` when it is whole. Raises EnvironmentFault."""
        place = (self._topology, self._setting)
        with progress("bench", len(self._plans), unit="sections") as bar:
            for name, plan in self._plans.items():
                bar.now(f"{name} on {self._topology}")
                if name == "cost":
                    costs = cost.measure(on, plan, *place)
                    crowded = self._topology.size > self._cores
                    over_all = cost.overhead(costs, oversubscribed=crowded)
                    sections |= {name: costs, "overhead": over_all}
                elif name == "stall":
                    sections[name] = stall.measure(on, plan, *place)
                elif name == "throughput":
                    found = run_plan(on, plan, *place)
                    sections[name] = throughput.rows(plan, self._topology, found, self._names[0])
                elif name == "curve":
                    found = run_plan(on, plan, *place)
                    sections[name] = throughput.curve(plan, self._topology, found, self._pair)
                else:
                    over = scaling.topologies(self._ranks_at_most)
                    sections[name] = scaling.measure(
                        on, plan, over, self._cores, self._setting, bar.now
                    )
                bar.advance()

    def parameters(self) -> dict[str, Any]:
        """All that decides what is measured."""
        return {
            "topology": str(self._topology),
            **msgspec.structs.asdict(self._setting),
            "plans": {name: settings.told(plan) for name, plan in self._plans.items()},
        }

    def _planned(self) -> dict[str, Any]:
        effort, names, model = self._effort, self._names, self._model
        makers: dict[str, Callable[[], Any]] = {
            "cost": lambda: settings.cost(effort, names),
            "stall": lambda: settings.stall(effort, names),
            "throughput": lambda: settings.throughput(effort, names, model, self._options.compute),
            "curve": lambda: settings.curve(effort, self._pair, model),
            "scaling": lambda: settings.scaling(effort, self._pair),
        }
        return {
            name: makers[name]()
            for name in self._only
            # With one stage there is nobody to stall behind the leader.
            if not (name == "stall" and self._topology.pp == 1)
        }


def _check(plan: AnyPlan, topology: Topology, setting: Setting) -> None:
    """Raise BadInput for what no scenario can carry."""
    try:
        scenario_of(plan, topology, setting)
    except ValueError as error:
        raise BadInput(f"{error}") from error


def _topology(text: str | None, world: int) -> Topology:
    if text is not None:
        topology = Topology.parse(text)
    else:
        topology = Topology(2, world // 2) if world % 2 == 0 else Topology(tp=world)
    topology.check_fits(world, oversubscribe=True)
    return topology


def _model(options: argparse.Namespace) -> Model:
    positive = {
        "--chunk": options.chunk,
        "--link-gb-s": options.link_gb_s,
        "--kv-bytes": options.kv_bytes,
    }
    for name, value in positive.items():
        if not 0 < value <= _MOST:  # not of a NaN either
            raise BadInput(f"{name} is {brief(value)}: give a number above 0, up to {_MOST:,}")
    if not 0 <= options.shared_prefix < 1:
        raise BadInput(f"--shared-prefix is {options.shared_prefix}: give a fraction, 0 to below 1")
    for name, value in {
        "--compute": options.compute,
        "--link-latency": options.link_latency,
    }.items():
        if not 0 <= value <= _MOST:
            raise BadInput(f"{name} is {brief(value)}: give a number from 0 to {_MOST:,}")
    # What a whole step may be made to take: no run would come to its end.
    step_us = options.compute * options.chunk
    if step_us > _LONGEST_STEP_US:
        raise BadInput(
            f"--compute {options.compute:g} and --chunk {options.chunk} make a step of "
            f"{step_us / 1e6:,.0f} s: give less, {_LONGEST_STEP_US / 1e6:.0f} s at most"
        )
    return Model(
        chunk_tokens=options.chunk,
        shared_prefix=options.shared_prefix,
        kv_bytes_per_token=options.kv_bytes,
        link_gb_s=options.link_gb_s,
        link_latency_us=options.link_latency,
        burn=options.burn,
    )
