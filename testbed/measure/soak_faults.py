"""Process faults over and over: every verdict right, nothing left behind, no growth.

    python -m testbed.measure.soak_faults [--rounds 200] [--commands 44] [--world 4] [--seed 0]

A round is one faulty case and one null case after it, all of them on one fleet. The faults: death
by four signals, at the beginning and the end of a step, inside an operation and at the exit, after
everything is over; an exception; a rank stopped for a while; an event that never fires; a round
left out at the end, which is a deadlock; a rank that leaves by ``os._exit`` with any status, that
leaves processes behind, or that records more than was reckoned with. Told at the end: milliseconds
from the fault to the verdict and to the end of the next case, resident memory of the hosts,
zombies, and what lies in shared memory and in the fleet's folder.

Then whole commands (run, matrix, soak, bench) are attacked at random moments, alone and with two
processes that spin beside them: see ``soak_commands``.

Exit status 0 if all was as it must be, 1 if not, 2 for bad input, 3 if the environment failed.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from reports.progress import progress
from testbed.console import output
from testbed.fleet import Fleet
from testbed.measure import soak_subjects
from testbed.measure.soak_commands import Ends, attacks, commands, spinning
from testbed.measure.soak_commands import strike as strike_command
from testbed.model.errors import printable
from testbed.model.events import About, Fired
from testbed.model.exit_status import AS_EXPECTED, NOT_AS_EXPECTED
from testbed.model.record import RunRecord
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome
from testbed.oracles import judge
from testbed.sessions.world import DEFAULT_WORLD, check_world

_SUBJECTS = "testbed.measure.soak_subjects"
_SHARED_MEMORY = Path("/dev/shm")
_VICTIM = {"pp": 1, "tp": 0, "cp": 0}
_STEPS = 6


@dataclass(frozen=True)
class Blow:
    """A fault on one follower, or a subject that does harm by itself, and what it must end in.
    left: processes that each rank leaves behind.
    """

    name: str
    fault: dict[str, Any] | None
    outcome: Outcome
    deadline_ms: int = 10_000
    subject: str = "batched"
    left: int = 0


def blows() -> list[Blow]:
    """Every process fault of the soak."""
    moments: dict[str, dict[str, Any]] = {
        "as a step begins": {"when": "begin", "from_step": 2},
        "as a step ends": {"when": "end", "from_step": 2},
        "inside an operation": {"inside": "any", "from_step": 2},
        "at the exit": {"when": "exit"},
    }
    deaths = [
        Blow(f"{signal} {when}", {"kind": "kill", "signal": signal, **moment}, Outcome.CRASH)
        for signal in ("SIGKILL", "SIGABRT", "SIGSEGV", "SIGTERM")
        for when, moment in moments.items()
    ]
    once = {"from_step": 2, "until_step": 3}
    others = [
        Blow("exception", {"kind": "raise", **once}, Outcome.CRASH),
        Blow("pause of 20 ms", {"kind": "pause", "ms": 20, **once}, Outcome.OK),
        Blow("event never fires", {"kind": "never-ready"}, Outcome.HANG, deadline_ms=200),
        Blow(
            "last round left out", {"kind": "skip-sync", "from_step": _STEPS - 1}, Outcome.DEADLOCK
        ),
    ]
    harmful = [
        Blow(f"os._exit({status})", None, Outcome.CRASH, subject=f"{_SUBJECTS}:exit_{status}")
        for status in soak_subjects.EXIT_STATUSES
    ]
    harmful += [
        Blow("processes left", None, Outcome.OK, subject=f"{_SUBJECTS}:leaves_behind", left=2),
        Blow("20,000 calls in a step", None, Outcome.OK, subject=f"{_SUBJECTS}:talkative"),
    ]
    return deaths + others + harmful


@dataclass
class Tally:
    """What one kind of fault came to. verdict_ms: from the fault to the verdict; next_ms: a
    whole case right after it. wrong: verdicts that were not the one expected.
    """

    runs: int = 0
    verdict_ms: list[float] = field(default_factory=list)
    next_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def scenario_of(blow: Blow, topology: Topology) -> Scenario:
    """One write under that fault."""
    return Scenario(
        name="soak-faults",
        topology=topology,
        steps=_STEPS,
        subject=blow.subject,
        workload={"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]},
        faults=[] if blow.fault is None else [{**blow.fault, "on": _VICTIM}],
        deadline_ms=blow.deadline_ms,
    )


def fired_at_ms(record: RunRecord) -> float | None:
    """The machine's monotonic clock when the first fault took effect."""
    for rank in record.ranks:
        born_us = next((one.born_us for one in rank.events if isinstance(one, About)), 0)
        for event in rank.events:
            if isinstance(event, Fired):
                return (born_us + event.t_us) / 1e3
    return None


def strike(fleet: Fleet, blow: Blow, topology: Topology, tally: Tally) -> None:
    """One round: the faulty case, then a null case. Raises EnvironmentFault if the fleet fails."""
    record = fleet.run(scenario_of(blow, topology))
    verdict = judge(record)
    judged_ms = time.monotonic() * 1e3
    struck_ms = fired_at_ms(record)
    tally.runs += 1
    left = [rank.left for rank in record.ranks]
    if verdict.outcome is not blow.outcome or (struck_ms is None) != (blow.fault is None):
        tally.wrong.append(f"{verdict.outcome}: {verdict.summary}")
    elif left != [blow.left] * topology.size:
        tally.wrong.append(f"processes left behind by the ranks: {left}")
    elif struck_ms is not None:
        tally.verdict_ms.append(judged_ms - struck_ms)
    began = time.monotonic()
    null = Scenario(name="null", topology=topology, steps=1, workload={"kind": "scripted"})
    after = judge(fleet.run(null))
    tally.next_ms.append((time.monotonic() - began) * 1e3)
    if after.outcome is not Outcome.OK:
        tally.wrong.append(f"the next case: {after.outcome}: {after.summary}")


@dataclass(frozen=True)
class Standing:
    """What there is of this process's descendants. resident_kib: of the hosts together."""

    processes: int
    zombies: int
    resident_kib: int
    shared_memory: int
    files: int


def standing(fleet: Fleet) -> Standing:
    """Look at the processes below this one, at /dev/shm and at the fleet's folder."""
    below = _descendants(os.getpid())
    states = [_status(pid, "State") for pid in below]
    hosts = [pid for pid in below if b"testbed.fleet.fork_server" in _command(pid)]
    return Standing(
        processes=len(below),
        zombies=sum(state.startswith("Z") for state in states),
        resident_kib=sum(int(_status(pid, "VmRSS").split()[0] or 0) for pid in hosts),
        shared_memory=len(list(_SHARED_MEMORY.iterdir())),
        files=len(list(fleet.folder.iterdir())),
    )


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [below for child in map(int, children) for below in (child, *_descendants(child))]


def _status(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return "0"


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def soak(world: int, rounds: int) -> tuple[dict[str, Tally], Standing, Standing]:
    """That many rounds on one fleet, every fault in turn. Raises EnvironmentFault."""
    topology = Topology(2, world // 2)
    tallies = {blow.name: Tally() for blow in blows()}
    with Fleet(world) as fleet:
        # The first of each pays for what later ones find ready.
        for blow in blows():
            strike(fleet, blow, topology, Tally())
        before = standing(fleet)
        with progress("soak of faults", rounds, unit="rounds") as bar:
            for count in range(rounds):
                blow = blows()[count % len(tallies)]
                bar.now(blow.name)
                strike(fleet, blow, topology, tallies[blow.name])
                bar.advance()
        return tallies, before, standing(fleet)


def attacked(world: int, count: int, seed: int) -> dict[str, Ends]:
    """That many attacks on commands, each kind on each command in turn."""
    chance = random.Random(seed)
    pairs = [(attack, name) for attack in attacks() for name in commands("", world)]
    chance.shuffle(pairs)
    tallies = {attack.name: Ends() for attack in attacks()}
    with progress("soak of commands", count, unit="commands") as bar:
        for number in range(count):
            attack, name = pairs[number % len(pairs)]
            bar.now(f"{attack.name}: {name}")
            words = commands(attack.subject, world)[name]
            ends = tallies[attack.name]
            before = len(ends.wrong)
            with spinning(2 if number % 2 else 0):
                strike_command(attack, words, chance, ends)
            ends.wrong[before:] = [f"{name}: {told}" for told in ends.wrong[before:]]
            bar.advance()
    return tallies


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, and print what came of it."""
    return output.ended("soak_faults", lambda: _soak(argv))


def _soak(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="soak_faults", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, metavar="N", help="of cases")
    parser.add_argument("--commands", type=int, default=44, metavar="N", help="that are attacked")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the attacks")
    parser.add_argument("--world", type=int, default=DEFAULT_WORLD, metavar="N")
    options = parser.parse_args(argv)
    check_world(options.world, "--world")
    tallies, before, after = soak(options.world, options.rounds)
    rows = [
        [name, one.runs, len(one.wrong), *_spread(one.verdict_ms), *_spread(one.next_ms)]
        for name, one in tallies.items()
    ]
    heads = ["fault", "runs", "wrong", "to verdict ms", "max", "next case ms", "max"]
    print(tabulate(rows, heads, "simple", floatfmt=".0f"))
    for name in Standing.__dataclass_fields__:
        print(f"{name.replace('_', ' ')}: {getattr(before, name)} -> {getattr(after, name)}")
    wrong = [f"{name}: {told}" for name, one in tallies.items() for told in one.wrong]
    ends = attacked(options.world, options.commands, options.seed)
    rows = [[name, one.runs, len(one.wrong), *_spread(one.seconds)] for name, one in ends.items()]
    print(tabulate(rows, ["attack", "commands", "wrong", "to end s", "max"], "simple"))
    wrong += [f"{name}: {told}" for name, one in ends.items() for told in one.wrong]
    print("\n".join(map(printable, wrong)))
    left = (after.processes, after.zombies, after.shared_memory, after.files)
    found = (before.processes, before.zombies, before.shared_memory, before.files)
    return NOT_AS_EXPECTED if wrong or left != found else AS_EXPECTED


def _spread(values_ms: list[float]) -> list[float | str]:
    return [statistics.median(values_ms), max(values_ms)] if values_ms else ["", ""]


if __name__ == "__main__":
    sys.exit(main())
