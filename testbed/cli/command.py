"""The command line: run, list, explain, replay, diff, recheck, matrix, compare, subjects, bench,
doctor.

Exit status: 0 everything was as expected, 1 something was not, 2 bad input, 3 the environment
failed, 130 Ctrl-C, 143 SIGTERM. Errors are one line on standard error. ``--json -`` puts the JSON
on standard output and the table on standard error.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from reports import outputs
from reports.colour import takes_colour
from reports.differ import compared
from reports.failure import report
from reports.results import Row, check_json, document, row, write_json
from reports.session import keep
from reports.story import story
from reports.table import as_list, for_terminal, tally
from testbed import faults, oracles, subjects
from testbed.bench import command as bench
from testbed.cli import compare as cli_compare
from testbed.cli import doctor
from testbed.cli import fetch as fetching
from testbed.cli import keys as reference
from testbed.cli import matrix as cli_matrix
from testbed.console import output
from testbed.console.options import (
    AS_EXPECTED,
    ENVIRONMENT,
    NOT_AS_EXPECTED,
    RAISE_WORLD,
    Parser,
    fleet_options,
    json_option,
    width,
)
from testbed.fleet import Fleet, MakesFleet
from testbed.model import record
from testbed.model import scenario as scenarios
from testbed.model.errors import EnvironmentFault, naming
from testbed.model.scenario import Scenario
from testbed.sessions import catalog, nodes
from testbed.sessions.catalog import Axes
from testbed.sessions.execute import execute, prepare
from testbed.sessions.finding import find_run, find_runs, taken_from
from testbed.sessions.result import RunResult, judged
from testbed.sessions.store import DEFAULT_ROOT, RunStore, in_use, shown
from testbed.sessions.world import DEFAULT_WORLD, RunsCases, check_world

_Named = tuple[str, Scenario]
"""A scenario and the file it was read from."""

LISTS = ("scenarios", "subjects", "faults", "oracles", "keys")


def main(argv: Sequence[str] | None = None, make_fleet: MakesFleet = Fleet) -> int:
    """Run one command and return its exit status."""
    return output.ended("testbed", lambda: _command(argv, make_fleet))


def _command(argv: Sequence[str] | None, make_fleet: MakesFleet) -> int:
    options = _parser().parse_args(argv)
    if getattr(options, "json", None) is not None:
        check_json(options.json)
    if hasattr(options, "listen"):
        nodes.check(vars(options))
    status: int = options.command(options, make_fleet)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="testbed",
        description="Runs protocols that keep a KV-cache hierarchy in step on real ranks.",
        epilog="exit status: 0 as expected, 1 not as expected, 2 bad input, 3 environment",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[..., int], does: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=does, description=does)
        added.set_defaults(command=run)
        return added

    run = command("run", _run, "run scenario files or built-in scenarios")
    run.add_argument("scenarios", nargs="+", metavar="FILE|NAME", help="or a glob of either")
    run.add_argument("--subject", help="run with this subject instead of the scenario's own")
    for axis in ("pp", "tp", "cp"):
        run.add_argument(f"--{axis}", type=int, metavar="N", help=f"{axis} size instead of its own")
    run.add_argument("--backend", choices=("gloo", "nccl"))
    run.add_argument("--device", choices=("cpu", "cuda"))
    run.add_argument("--agree-on", choices=("gloo", "nccl"), help="what the agreement goes over")
    fleet_options(run, DEFAULT_WORLD)
    nodes.add_options(run.add_argument)
    _ranks_option(run)
    json_option(run)

    listing = command("list", _list, "list what there is, one line each")
    listing.add_argument(
        "what",
        nargs="?",
        choices=LISTS,
        help="default: all but keys, every key a scenario file may have",
    )
    json_option(listing)

    explain = command("explain", _explain, "tell the story of a recorded run")
    explain.add_argument(
        "run", metavar="RUN", help="its folder, or a case id of the newest session that has it"
    )
    explain.add_argument(
        "--full", action="store_true", help="whole tracebacks and stacks, every consequence"
    )

    replay = command("replay", _replay, "run the scenarios of recorded runs again")
    replay.add_argument("runs", nargs="+", metavar="RUN", help="a run, or a session's folder")
    fleet_options(replay, None)
    nodes.add_options(replay.add_argument)
    _ranks_option(replay)
    json_option(replay)

    diff = command("diff", _diff, "tell the first place where two recorded runs differ")
    for which in ("one", "other"):
        diff.add_argument(
            which, metavar="RUN", help="its folder, or a case id of the newest session that has it"
        )

    recheck = command("recheck", _recheck, "judge recorded runs again without running them")
    recheck.add_argument("runs", nargs="+", metavar="RUN", help="a run, or a session's folder")
    _ranks_option(recheck)
    json_option(recheck)

    cli_matrix.options(command("matrix", cli_matrix.run, cli_matrix.DOES))
    cli_compare.options(command("compare", cli_compare.run, cli_compare.DOES))

    releases = command("subjects", _subjects, "fetch releases of SGLang into the cache")
    releases.add_argument("what", choices=("fetch",))
    releases.add_argument("names", nargs="+", metavar="sglang==X")

    bench.add_options(command("bench", bench.run, "measure what an agreement costs"))

    command("doctor", _doctor, "check the environment, one line each")
    return parser


def _ranks_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", choices=outputs.CHOICES, default="first", help=outputs.HELP)


def _run(options: argparse.Namespace, make_fleet: MakesFleet) -> int:
    axes = Axes(options.pp, options.tp, options.cp)
    own = {key: getattr(options, key) for key in ("subject", "backend", "device", "agree_on")}
    changes = {key: value for key, value in own.items() if value is not None}
    if options.subject is not None:
        subjects.prepare(options.subject)
    cases: list[_Named] = []
    for path in (path for named in options.scenarios for path in catalog.find(named)):
        where = shown(path)
        scenario = scenarios.load(Path(where))
        with naming(where):
            spread = catalog.spread(scenario, axes=axes)
            cases += [(where, case.but(**changes)) for case in spread]
    return _run_cases(cases, options, options.world, options.oversubscribe, make_fleet)


def _explain(options: argparse.Namespace, _: MakesFleet) -> int:
    print(story(_judged_again(_found(options.run)), full=options.full))
    return AS_EXPECTED


def _diff(options: argparse.Namespace, _: MakesFleet) -> int:
    one, other = (_judged_again(_found(named)) for named in (options.one, options.other))
    difference = compared(one, other)
    print(difference.told)
    return NOT_AS_EXPECTED if difference.differ else AS_EXPECTED


def _found(named: str) -> Path:
    """As ``find_run``; says of which session it is where the latest has no such run."""
    path = find_run(named)
    _say_session(named, path)
    return path


def _all_found(named: Iterable[str]) -> list[Path]:
    """As ``find_runs`` of each; likewise."""
    paths = []
    for each in named:
        found = find_runs(each)
        _say_session(each, found[0])
        paths += found
    return paths


def _say_session(named: str, path: Path) -> None:
    told = taken_from(named, path)
    if told:
        print(f"testbed: {told}", file=sys.stderr)


def _judged_again(path: Path) -> RunResult:
    return judged(record.load(path), path if path.is_dir() else path.parent)


def _replay(options: argparse.Namespace, make_fleet: MakesFleet) -> int:
    paths = _all_found(options.runs)
    cases = [(shown(path), record.load(path).scenario) for path in paths]
    largest = max(case.topology.size for _, case in cases)
    world = min(largest, DEFAULT_WORLD) if options.world is None else options.world
    # A replay needs no flags of its own: what ran on one fleet runs on any.
    oversubscribe = options.oversubscribe or (options.world is None and largest > world)
    with contextlib.ExitStack() as held:
        for path in paths:  # what is being looked at is not pruned away by its own replay
            held.enter_context(in_use(path))
        return _run_cases(cases, options, world, oversubscribe, make_fleet)


def _run_cases(
    cases: list[_Named],
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
            rows = _tell(results, options, world, "" if lost else shown(store.folder))
            if not lost:
                keep(rows, world, store.folder)
        store.close()
    if lost:
        raise EnvironmentFault(lost)
    return _status(rows)


def _fleet(
    options: argparse.Namespace, world: int, oversubscribe: bool, make_fleet: MakesFleet
) -> contextlib.AbstractContextManager[RunsCases]:
    if options.listen is not None:
        return nodes.awaited_fleet(world, vars(options), oversubscribe=oversubscribe)
    return make_fleet(world, oversubscribe=oversubscribe, port=options.port)


def _recheck(options: argparse.Namespace, _: MakesFleet) -> int:
    paths = _all_found(options.runs)
    return _status(_tell([_judged_again(path) for path in paths], options, 0, ""))


def _tell(
    results: Sequence[RunResult], options: argparse.Namespace, world: int, out: str
) -> list[Row]:
    stream = sys.stderr if options.json == "-" else sys.stdout
    rows = [row(result) for result in results]
    print(for_terminal(rows, width(stream), colour=takes_colour(stream)), file=stream)
    print(f"\n{tally(rows)}" + (f"; kept in {out}" if out else ""), file=stream)
    # After the table: the last line of all is the command that replays what failed.
    for each, result in zip(rows, results, strict=True):
        if not each["as_expected"]:
            print(f"\n{report(each, outputs.outputs(result, options.ranks))}", file=stream)
    if options.json:
        write_json(document(rows, world, out), options.json)
    return rows


def _status(rows: Sequence[Row]) -> int:
    """3 where only runs that the testbed itself failed were not as expected, else 1."""
    failed = [row["verdict"] for row in rows if not row["as_expected"]]
    if not failed:
        return AS_EXPECTED
    return ENVIRONMENT if set(failed) == {"error"} else NOT_AS_EXPECTED


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", flush=True, file=sys.stderr)


def _list(options: argparse.Namespace, _: MakesFleet) -> int:
    listings: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "scenarios": _scenarios,
        "subjects": lambda: _entries(subjects.available()),
        "faults": lambda: _entries(faults.available()),
        "oracles": lambda: _entries(oracles.available()),
        "keys": _keys,
    }
    # The keys are many: only when asked for.
    wanted = [options.what] if options.what else [kind for kind in LISTS if kind != "keys"]
    listed = {kind: listings[kind]() for kind in wanted}
    stream = sys.stderr if options.json == "-" else sys.stdout
    for kind, entries in listed.items():
        if not options.what:
            print(f"{kind}:", file=stream)
        told = as_list([(entry["name"], entry["about"]) for entry in entries])
        print(told if options.what else indent(told, "  "), file=stream)
    if options.json:
        write_json(listed, options.json)
    return AS_EXPECTED


def _scenarios() -> list[dict[str, Any]]:
    found = []
    for file in catalog.builtin_files():
        scenario = catalog.load([str(file)])[0]
        what = f"{scenario.subject} {scenario.topology}, {scenario.expected.verdict}"
        about = what + (f": {first_sentence(scenario.comment)}" if scenario.comment else "")
        found.append({"name": file.stem, "about": about, "path": shown(Path(file))})
    return found


def _keys() -> list[dict[str, Any]]:
    """Every key of a scenario file, what it takes and its default."""
    listed = []
    for key in reference.every_key():
        default = f", default {key.default}" if key.default else ", must be given"
        about = f"{key.takes}{default}" if key.name else ""
        name = f"{key.of}: {key.name}".rstrip(": ")
        listed.append({"name": name, "about": about, "meaning": key.meaning})
    return listed


def _entries(available: Iterable[str] | dict[str, str]) -> list[dict[str, Any]]:
    about = available if isinstance(available, dict) else dict.fromkeys(available, "")
    return [{"name": name, "about": first_sentence(text)} for name, text in about.items()]


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence, on one line, as plain text."""
    return " ".join(text.replace("``", "").split()).split(". ")[0].rstrip(".")


def _subjects(options: argparse.Namespace, _: MakesFleet) -> int:
    fetching.fetch(options.names)
    return AS_EXPECTED


def _doctor(_: argparse.Namespace, __: MakesFleet) -> int:
    healthy = True
    for check in doctor.examine():
        print(check.one_line(), flush=True)
        healthy &= check.state != "bad"
    return AS_EXPECTED if healthy else ENVIRONMENT
