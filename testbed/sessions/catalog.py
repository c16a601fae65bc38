"""Which scenarios there are, and how one of them is spread over topologies and subjects.

A scenario is named by a file's path, by a built-in name (the stem of a file under
``cases/scenarios/`` of this checkout), or by a glob of either. The order is always the same, so
that parallel workers agree on it.
"""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from testbed.model import scenario as scenarios
from testbed.model.errors import BadInput, shortened
from testbed.model.scenario import Scenario, select
from testbed.model.topology import Topology

BUILTIN = Path(__file__).resolve().parents[2] / "cases" / "scenarios"

_GLOB = frozenset("*?[")


class NamesNobody(BadInput):
    """A selector of the scenario names no rank at any of the topologies asked for."""


@dataclass(frozen=True)
class Axes:
    """Sizes that a user asked for; None leaves an axis alone."""

    pp: int | None = None
    tp: int | None = None
    cp: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """The axes that were asked for."""
        wanted = {"pp": self.pp, "tp": self.tp, "cp": self.cp}
        return {axis: size for axis, size in wanted.items() if size is not None}

    def among(self, topologies: Sequence[Topology]) -> list[Topology]:
        """The topologies of those sizes; where none has them, the first one changed to have them.

        Raises BadInput if that is no topology.
        """
        having = [
            topology
            for topology in topologies
            if all(getattr(topology, axis) == size for axis, size in self.given.items())
        ]
        return having or [msgspec.structs.replace(topologies[0], **self.given)]


def builtin_files() -> list[Path]:
    """Files of the built-in scenarios; none where the testbed runs from outside its checkout."""
    return sorted(BUILTIN.glob("*.json"))


def find(named: str, base: Path | None = None) -> list[Path]:
    """The scenario files that a path, a built-in name or a glob stands for, sorted.

    base: folder that paths are relative to (default: the working folder). Raises BadInput if there
    are none.
    """
    base = Path.cwd() if base is None else base
    found = _files(base, named) or _files(BUILTIN, f"{named}.json")
    if found:
        return found
    close = get_close_matches(named, [file.stem for file in builtin_files()], n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise BadInput(
        f"{shortened(named)}: no such scenario file or built-in scenario "
        f"({hint}`python -m testbed list scenarios` shows them)"
    )


def _files(base: Path, named: str) -> list[Path]:
    """The file of that name or the files that fit a glob; none for what can be no file's name."""
    if "\0" in named:
        return []
    if _GLOB.isdisjoint(named):
        # Not Path.is_file(): that raises for a name too long.
        return [base / named] if os.path.isfile(base / named) else []
    fitting = glob.glob(named, root_dir=base, recursive=True)
    return sorted(base / name for name in fitting if os.path.isfile(base / name))


def load(named: Iterable[str], base: Path | None = None) -> list[Scenario]:
    """The scenarios of all those names, in that order. Raises BadInput."""
    return [scenarios.load(path) for name in named for path in find(name, base)]


def spread(
    scenario: Scenario,
    topologies: Sequence[Topology] = (),
    subjects: Sequence[str] = (),
    axes: Axes | None = None,
) -> list[Scenario]:
    """The scenario at each topology and with each subject, none given meaning its own.

    Topologies at which one of its ``on`` selectors names nobody (a tensor-parallel peer at tp1, a
    follower at pp1) are left out. Raises NamesNobody if none is left.
    """
    wanted = (axes or Axes()).among(topologies or [scenario.topology])
    sensible = [topology for topology in wanted if _keeps_its_meaning(scenario, topology)]
    if not sensible:
        raise NamesNobody(
            f"scenario {shortened(scenario.name)}: one of its 'on' selects no rank at "
            f"{', '.join(map(str, wanted))}"
        )
    return [
        scenario.but(topology=topology, subject=subject)
        for subject in subjects or [scenario.subject]
        for topology in sensible
    ]


def _keeps_its_meaning(scenario: Scenario, topology: Topology) -> bool:
    """Every selector names somebody, and everybody only if it does at the scenario's topology."""
    named = [pool.on for pool in scenario.sidecars] + [call.on for call in scenario.calls]
    parts = [scenario.workload, scenario.faults, [{"on": where} for where in named]]
    home = scenario.topology
    return all(
        len(chosen := select(where, topology)) > 0
        and (len(chosen) == topology.size) <= (len(select(where, home)) == home.size)
        for where in _selectors(parts)
    )


def _selectors(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "on":
                yield item
            else:
                yield from _selectors(item)
    elif isinstance(value, list):
        for item in value:
            yield from _selectors(item)
