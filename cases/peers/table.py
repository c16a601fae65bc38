"""Runs the programs, sound and broken, and says what came of each."""

import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from cases.peers.catalog import Broken, Peer
from testbed.fleet import Fleet
from testbed.model.errors import EnvironmentFault
from testbed.model.events import Measured
from testbed.model.record import RunRecord
from testbed.model.scenario import Scenario
from testbed.model.verdict import Outcome, Verdict
from testbed.programs.life import BROKEN, RESULT
from testbed.programs.plan import Break, Plan, scenario_of
from testbed.sessions.execute import execute_as_it_is
from testbed.sessions.result import RunResult
from testbed.sessions.store import RunStore

SUITE = "cases.peers.programs.torch_suite:"
SUITE_NAME = "DistributedTest of torch"
SUITE_NEEDS = "expecttest"
SUITE_RANKS = 3
_DEADLINE_MS = 10_000
_BROKEN_DEADLINE_MS = 6_000
_TOLD_KEPT = 150
_SUITE_DEADLINE_MS = 20_000
_SEEN = (Outcome.VIOLATION, Outcome.DEADLOCK, Outcome.CRASH, Outcome.HANG)


@dataclass(frozen=True)
class Row:
    """One line. verdict: what the run came to. wrong: what is not as it must be, "" where all is.
    told: where the ranks first differed. skipped: why it was not run. unseen: nothing in a record
    shows this damage.
    """

    program: str
    ranks: int
    broken: str
    verdict: str = ""
    told: str = ""
    wrong: str = ""
    skipped: str = ""
    unseen: bool = False


def lacks(package: str) -> str:
    """Why what needs the package is not run; "" where it is there."""
    there = not package or importlib.util.find_spec(package) is not None
    return "" if there else f"{package} is not installed"


def measure(peer: Peer, fleet: Fleet, store: RunStore, *, breaks: int = 99) -> Iterator[Row]:
    """Run it bare and recorded, then broken in up to so many of its ways."""
    why = lacks(peer.needs)
    if why:
        yield Row(peer.name, peer.ranks, "", skipped=why)
        return
    yield _sound(peer, fleet, store)
    for broken in peer.broken[:breaks]:
        yield _damaged(peer, broken, fleet, store)


def _sound(peer: Peer, fleet: Fleet, store: RunStore) -> Row:
    bare = fleet.run(_scenario(peer, Plan(args=peer.args, recorded=False), "bare"))
    result = _run(fleet, store, _scenario(peer, Plan(args=peer.args), "sound"))
    wrong = ""
    if bare.ended != "finished":
        wrong = f"bare, it ended as {bare.ended}"
    elif results(bare) != results(result.record):
        wrong = "recorded, it has other results than bare"
    elif result.verdict.outcome is not Outcome.OK:
        wrong = "it is sound"
    return Row(peer.name, peer.ranks, "", str(result.verdict.outcome), _told(result.verdict), wrong)


def _damaged(peer: Peer, broken: Broken, fleet: Fleet, store: RunStore) -> Row:
    plan = Plan(args={**peer.args, **broken.args}, breaks=list(broken.breaks))
    scenario = _scenario(peer, plan, broken.what, _BROKEN_DEADLINE_MS)
    result = _run(fleet, store, scenario)
    verdict = result.verdict
    wrong = ""
    if broken.breaks and not took_effect(result.record):
        wrong = "the damage never took effect"
    elif broken.unseen:
        wrong = "" if verdict.outcome is Outcome.OK else "nothing can be seen, yet it was"
    elif verdict.outcome not in _SEEN:
        wrong = "not found"
    else:
        wrong = misnamed(verdict, broken)
    return Row(
        peer.name,
        peer.ranks,
        broken.what,
        str(verdict.outcome),
        _told(verdict),
        wrong,
        unseen=bool(broken.unseen),
    )


def misnamed(verdict: Verdict, broken: Broken) -> str:
    """What is not right in where the verdict says that the ranks first differed; "" if all is."""
    first = verdict.first_divergence
    if first is None:
        return "no place is named"
    # Of a message both ends are told, and of two ranks none is the odd one.
    either = "->" in first.channel or len(first.did) == 2
    if broken.rank not in first.minority and not (either and str(broken.rank) in first.did):
        return f"rank {broken.rank} is wrong, not {list(first.minority)}"
    # Two ranks that wait for each other in two messages: nothing says which was left out, and both
    # are told, one of them first.
    missing = [part for part in broken.at if part not in first.one_line()]
    return f"{', '.join(missing)} is not named" if missing else ""


def results(record: RunRecord) -> list[list[Any]]:
    """What the program returned on each rank."""
    return [
        [
            event.figures["value"]
            for event in rank.events
            if isinstance(event, Measured) and event.what == RESULT
        ]
        for rank in record.ranks
    ]


def took_effect(record: RunRecord) -> bool:
    """Whether a damage was done."""
    return any(
        isinstance(event, Measured) and event.what == BROKEN
        for rank in record.ranks
        for event in rank.events
    )


def _scenario(peer: Peer, plan: Plan, how: str, deadline_ms: int = _DEADLINE_MS) -> Scenario:
    name = "-".join(f"{peer.name} {how}".replace(",", "").replace(":", "").split())
    return scenario_of(
        peer.program, peer.ranks, plan, name=name.replace("/", "or"), deadline_ms=deadline_ms
    )


def _run(fleet: Fleet, store: RunStore, scenario: Scenario) -> RunResult:
    return execute_as_it_is(fleet, scenario, store)


def _told(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.OK:
        return ""
    first = verdict.first_divergence
    return first.one_line() if first is not None else verdict.summary


# Damage to some of torch's tests: the test, the rank that is wrong, and the operation.
SUITE_BROKEN: tuple[tuple[str, Broken], ...] = tuple(
    (method, Broken(what, rank, (named,), (Break("skip", rank, op, 0),)))
    for method, what, rank, op, named in (
        ("test_all_reduce_sum", "a collective skipped", 1, "all_reduce", "world"),
        ("test_broadcast", "a collective skipped", 1, "broadcast", "world"),
        ("test_all_gather", "a collective skipped", 2, "all_gather", "world"),
        ("test_barrier", "a collective skipped", 1, "barrier", "world"),
        ("test_reduce_sum", "a collective skipped", 1, "reduce", "world"),
        ("test_scatter", "a collective skipped", 1, "scatter", "world"),
        ("test_all_to_all_single_equal_split", "a collective skipped", 1, "all_to_all_single", ""),
        ("test_send_recv", "a send dropped", 0, "send", "0->"),
        ("test_isend", "a send dropped", 0, "isend", "0->"),
        ("test_send_recv_with_tag", "a receive dropped", 1, "recv", "->1"),
        ("test_batch_isend_irecv_gloo", "a send dropped", 1, "isend", "1->"),
    )
)


def suite(
    fleet: Fleet, store: RunStore, only: Iterable[str] | None = None, *, breaks: int = 99
) -> Iterator[Row]:
    """PyTorch's own tests: one line for all that are as they must be, one for each that is not."""
    why = lacks(SUITE_NEEDS)
    if why:
        yield Row(SUITE_NAME, SUITE_RANKS, "", skipped=why)
        return
    tally: Counter[str] = Counter()
    for method in suite_methods(fleet) if only is None else only:
        row, came = _tested(method, fleet, store)
        if row.wrong:
            yield row
        else:
            tally[came] += 1
    told = ", ".join(f"{number} {came}" for came, number in sorted(tally.items()))
    yield Row(SUITE_NAME, SUITE_RANKS, "", "ok", told)
    for method, broken in SUITE_BROKEN[:breaks]:
        yield _damaged(_as_peer(method), broken, fleet, store)


def suite_methods(fleet: Fleet) -> list[str]:
    """The names of torch's tests, as the ranks' torch has them. Raises EnvironmentFault."""
    record = fleet.run(
        scenario_of(SUITE + "method_names", 1, Plan(recorded=False), deadline_ms=60_000)
    )
    found = results(record)
    if record.ended != "finished" or not found[0]:
        raise EnvironmentFault("torch's DistributedTest cannot be imported")
    names: list[str] = found[0][0]
    return names


def _as_peer(method: str) -> Peer:
    return Peer(method, "torch_suite:distributed_test", SUITE_RANKS, {"method": method})


def _tested(method: str, fleet: Fleet, store: RunStore) -> tuple[Row, str]:
    """Its line, and how it went: passed, skipped, or failed bare just so."""
    peer = _as_peer(method)
    bare = fleet.run(
        _scenario(peer, Plan(args=peer.args, recorded=False), "bare", _SUITE_DEADLINE_MS)
    )
    scenario = _scenario(peer, Plan(args=peer.args), "sound", _SUITE_DEADLINE_MS)
    result = _run(fleet, store, scenario)
    outcome = result.verdict.outcome
    came, wrong = _came(results(bare)), ""
    if (bare.ended, results(bare)) != (result.record.ended, results(result.record)):
        wrong = f"bare, it ended as {bare.ended} with {results(bare)}"
    elif bare.ended == "finished" and outcome is not Outcome.OK:
        wrong = "it is sound"
    elif bare.ended != "finished" and outcome is not Outcome.CRASH:
        wrong = "it raises by itself, and is nothing but a crash"
    return (
        Row(method, SUITE_RANKS, "", str(outcome), _told(result.verdict), wrong),
        came,
    )


def _came(found: list[list[Any]]) -> str:
    every = {str(one[0]).partition(":")[0] if one else "failed bare too" for one in found}
    return "failed bare too" if "failed bare too" in every else min(every)


def table(rows: Iterable[Row], style: str = "simple") -> str:
    """All of them, for people."""
    lines = [
        (
            row.program,
            row.ranks,
            row.broken or "sound",
            row.verdict or f"skipped: {row.skipped}",
            row.wrong or ("" if row.skipped else "cannot be seen" if row.unseen else "yes"),
            row.told,
        )
        for row in rows
    ]
    text: str = tabulate(
        [(*line[:5], line[5][:_TOLD_KEPT].replace("|", "/")) for line in lines],
        ("program", "ranks", "broken by", "verdict", "right", "first named"),
        style,
        disable_numparse=True,
    )
    return text
