"""Random scenarios in which nothing may be found, and a hunt that shrinks what is found.

    python -m testbed.measure.soak [--examples 1000] [--subject S[,S]] [--seed 0] [--save DIR]

A random scenario is sound: every rank enqueues the same transfers, and what differs from rank to
rank is speed alone. On a sound protocol it must end ``ok``; whatever else it ends in is a bug of
the protocol or of an oracle. Hypothesis shrinks the first finding and it is saved as a scenario
file that replays. With a planted bug as subject the same hunt shows that it can find something.

Exit status 0 if nothing was found, 1 if something was, 2 for bad input, 3 if the environment
failed.
"""

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from reports.progress import progress
from testbed import subjects
from testbed.console import output
from testbed.fleet import Fleet
from testbed.model.errors import printable
from testbed.model.scenario import Scenario, Sidecar, from_object, to_object
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome, Verdict
from testbed.oracles import judge
from testbed.sessions.execute import prepare
from testbed.sessions.store import DEFAULT_ROOT
from testbed.sessions.world import DEFAULT_WORLD, check_world

SOUND = ("batched", "separate", "fused", "deferred")

_TOPOLOGIES = ("pp1tp1", "pp2tp1", "pp1tp2", "pp2tp2", "pp3tp1", "pp4tp1", "pp1tp4", "pp2tp1cp2")
_LATEST_AT, _SLOWEST, _MOST_SKEW = 6, 4, 4
# Steps after the last event is ready in which everything must have been completed.
_SETTLE = 4


@st.composite
def scenarios(draw: st.DrawFn, subject: str, world: int) -> Scenario:
    """A random sound scenario for ``subject`` with at most ``world`` ranks."""
    fitting = [t for t in map(Topology.parse, _TOPOLOGIES) if t.size <= world]
    topology = draw(st.sampled_from(fitting))
    transfer = st.fixed_dictionaries(
        {"at": st.integers(0, _LATEST_AT), "ready_after": st.integers(0, _SLOWEST)}
    )
    workload: dict[str, Any] = {
        "kind": "scripted",
        "writes": draw(st.lists(transfer, max_size=4)),
        "loads": draw(st.lists(transfer, max_size=4)),
    }
    storage = draw(st.booleans())
    sidecars = [Sidecar("mamba")] if storage and draw(st.booleans()) else []
    if storage:
        queues = ["prefetch", "release", *(f"sidecar:{pool.name}" for pool in sidecars)]
        item = {"queue": st.sampled_from(queues), "at": st.integers(0, _LATEST_AT)}
        workload["storage"] = draw(st.lists(st.fixed_dictionaries(item), max_size=3))
        workload["backup_after"] = draw(st.integers(0, 2))
    faults = draw(_skews(topology, workload)) if workload["writes"] or workload["loads"] else []
    return Scenario(
        name="soak",
        topology=topology,
        subject=subject,
        workload=workload,
        storage=storage,
        sidecars=sidecars,
        faults=faults,
        steps=_LATEST_AT + _SLOWEST + _MOST_SKEW * len(faults) + _SETTLE,
    )


@st.composite
def _skews(draw: st.DrawFn, topology: Topology, workload: dict[str, Any]) -> list[dict[str, Any]]:
    """Up to two groups of ranks whose events are some steps slower."""
    where: list[Any] = [{"rank": rank} for rank in range(topology.size)]
    where += [{axis: at} for axis in ("pp", "tp", "cp") for at in range(getattr(topology, axis))]
    held = [queue for queue in ("write", "load") if workload[f"{queue}s"]]
    one = st.fixed_dictionaries(
        {
            "kind": st.just("slow-events"),
            "on": st.sampled_from(where),
            "queue": st.sampled_from(held),
            "steps": st.integers(1, _MOST_SKEW),
        }
    )
    # In steps only: what milliseconds come to is up to the machine, and no finding would shrink.
    return draw(st.lists(one, max_size=2))


@dataclass(frozen=True)
class Hunt:
    """What a hunt came to. found: the smallest scenario that did not end ok, and its verdict."""

    subject: str
    ran: int
    seconds: float
    found: Scenario | None
    verdict: Verdict | None


def hunt(fleet: Fleet, subject: str, examples: int, seed: int) -> Hunt:
    """Look for a sound scenario that does not end ``ok``; shrink the first one found.

    Raises EnvironmentFault if the fleet fails.
    """
    seen: dict[str, Verdict] = {}
    ran = 0

    def ends_badly(scenario: Scenario) -> bool:
        nonlocal ran
        ran += 1
        verdict = judge(fleet.run(scenario))
        bar.advance()
        seen[_key(scenario)] = verdict
        return verdict.outcome is not Outcome.OK

    prepare(_plain(subject))
    began = time.monotonic()
    # No example database: a seed decides everything. No deadline: a world costs what it costs.
    settings = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        # Shrinking what was found takes runs of its own, beyond the total.
        with progress(f"soak {subject}", examples) as bar:
            found = hypothesis.find(
                scenarios(subject, fleet.world),
                ends_badly,
                settings=settings,
                random=random.Random(seed),
            )
    except KeyboardInterrupt:
        print(f"{subject}: {ran} runs, then interrupted, seed {seed}: nothing found", flush=True)
        raise
    except hypothesis.errors.NoSuchExample:
        return Hunt(subject, ran, time.monotonic() - began, None, None)
    return Hunt(subject, ran, time.monotonic() - began, found, seen[_key(found)])


def save(found: Hunt, folder: Path) -> Path:
    """Write the shrunk scenario as a file that runs by itself; returns its path."""
    assert found.found is not None
    data = to_object(found.found)
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
    name = f"soak-{found.subject}-{digest}".replace(":", "-").replace("=", "")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**data, "name": name, "expect": []}, indent=1) + "\n")
    return path


def _plain(subject: str) -> Scenario:
    nothing = {"name": "soak", "topology": {}, "workload": {"kind": "scripted"}}
    return from_object({**nothing, "subject": subject}, "soak")


def _key(scenario: Scenario) -> str:
    return json.dumps(to_object(scenario), sort_keys=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Hunt with each subject in turn and tell what came of it, a line each."""
    return output.ended("soak", lambda: _hunts(argv))


def _hunts(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.split("\n")[0])
    parser.add_argument("--examples", type=int, default=1000, metavar="N", help="in all")
    parser.add_argument("--subject", default=",".join(SOUND), metavar="S[,S]")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--world", type=int, default=DEFAULT_WORLD, metavar="N")
    parser.add_argument("--save", type=Path, default=DEFAULT_ROOT / "soak", metavar="DIR")
    options = parser.parse_args(argv)
    names = options.subject.split(",")
    status = 0
    check_world(options.world, "--world")
    for name in names:
        subjects.check(name)
    with Fleet(options.world) as fleet:
        for name in names:
            result = hunt(fleet, name, -(-options.examples // len(names)), options.seed)
            told = f"{name}: {result.ran} runs in {result.seconds:.0f} s, seed {options.seed}"
            if result.found is None or result.verdict is None:
                print(f"{told}: nothing found", flush=True)
                continue
            status = 1
            path = save(result, options.save)
            print(f"{told}: {result.verdict.outcome}: {printable(result.verdict.summary)}")
            print(f"    python -m testbed run {path}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
