"""Many scenarios with many subjects, each pair a case of its own on one fleet.

A pair that the testbed itself fails in does not end the others: it comes out as ``Unfilled`` with
the reason, and so do all pairs of a subject that cannot be had.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from testbed import subjects
from testbed.fleet import LastingFleet
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.scenario import Scenario
from testbed.sessions import catalog
from testbed.sessions.execute import execute, prepare
from testbed.sessions.result import RunResult
from testbed.sessions.store import RunStore
from testbed.subjects.bad_code import BadCode
from testbed.subjects.sglang import Unliftable

MAX_DEADLINE_MS = 1500
"""Wall time without progress before a case of a matrix is a hang, where its scenario allows more:
hundreds of cases are run, and a rank that does anything does it within milliseconds."""

_GLOB = frozenset("*?[")
_WELL_KNOWN = "batched"


class Unfilled(NamedTuple):
    """A pair without a verdict: the testbed or its environment failed. reason: one line."""

    scenario: Scenario
    reason: str


class Unfit(NamedTuple):
    """A pair that makes no sense: the subject lacks what the scenario needs. reason: one line."""

    scenario: Scenario
    reason: str


Cell = RunResult | Unfilled | Unfit


def published() -> list[Scenario]:
    """The built-in scenarios with a published report behind them, by name."""
    builtin = [catalog.load([str(file)])[0] for file in catalog.builtin_files()]
    return [scenario for scenario in builtin if scenario.report]


def named_subjects(names: Sequence[str]) -> list[str]:
    """Subjects by name or by a glob over those that are listed, each once.

    Raises BadInput for a glob that fits none.
    """
    found: list[str] = []
    for name in names:
        if _GLOB.isdisjoint(name):
            found.append(name)
            continue
        fitting = [each for each in subjects.available() if fnmatchcase(each, name)]
        if not fitting:
            raise BadInput(
                f"--subjects {name!r} fits none: `python -m testbed list subjects` shows them"
            )
        found += fitting
    return list(dict.fromkeys(found))


def usable_subjects(
    names: Iterable[str], wanted: Collection[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The subjects that can be run, in that order; and those left out because they cannot be
    lifted, with the reason. One that cannot be had now is usable: its cells will say so.

    wanted: named by the user one by one. Raises BadInput for one of them that cannot be lifted,
    and for a name that stands for no subject.
    """
    usable: list[str] = []
    left_out: dict[str, str] = {}
    for name in names:
        try:
            subjects.prepare(name)
        except (Unliftable, BadCode) as error:
            if name in wanted:
                raise
            left_out[name] = str(error)
        except EnvironmentFault:
            usable.append(name)
        else:
            usable.append(name)
    return usable, left_out


def cases(scenarios: Iterable[Scenario], names: Iterable[str]) -> list[Scenario]:
    """Every scenario, at its own topology, with every subject; all of one subject together, since a
    host lifts a release once. Raises BadInput for a scenario that cannot be run by anything.
    """
    listed = list(scenarios)
    seen: set[str] = set()
    for scenario in listed:
        if scenario.name in seen:
            raise BadInput(f"two scenarios are named {scenario.name}: a line is told by its name")
        seen.add(scenario.name)
        prepare(scenario.but(subject=_WELL_KNOWN))
    return [
        scenario.but(subject=name, deadline_ms=min(scenario.deadline_ms, MAX_DEADLINE_MS))
        for name in names
        for scenario in listed
    ]


def fill(wanted: Iterable[Scenario], fleet: LastingFleet, store: RunStore) -> Iterator[Cell]:
    """Run the cases one after another; each result as soon as it is there.

    Raises EnvironmentFault if a fleet was lost and no other can be started.
    """
    missing: dict[str, str] = {}
    prepared: set[str] = set()
    for case in wanted:
        if case.subject not in prepared:
            prepared.add(case.subject)
            reason = _why_not(case.subject)
            if reason:
                missing[case.subject] = reason
        if case.subject in missing:
            yield Unfilled(case, missing[case.subject])
            continue
        fleet.renew()  # what it raises ends the matrix: without hosts there is nothing to tell
        yield _run(case, fleet, store)


def _run(case: Scenario, fleet: LastingFleet, store: RunStore) -> Cell:
    try:
        return execute(fleet, case, store)
    except EnvironmentFault as error:
        return Unfilled(case, str(error))
    except BadInput as error:  # the scenario and the subject are sound, each by itself: see cases()
        return Unfit(case, str(error))


def _why_not(subject: str) -> str:
    try:
        subjects.prepare(subject)
    except EnvironmentFault as error:
        return str(error)
    return ""
