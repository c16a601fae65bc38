"""Runs scenarios on the CPU and on a GPU, and compares how they ended.

``python -m testbed.measure.same_verdicts SCENARIO ... [--world N]``. Prints a Markdown table; exit
status 1 where two verdicts of one scenario differ, 2 or 3 as the runs themselves end for a bad name
or without a GPU.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed.console import output
from testbed.model.exit_status import AS_EXPECTED, NOT_AS_EXPECTED
from testbed.sessions.world import DEFAULT_WORLD

FAKE, REAL = "cpu", "cuda"
_COMPARED = ("verdict", "oracle", "step", "ranks")
_CANNOT_RUN = (2, 3)

Rows = Mapping[str, Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run both ways and compare; returns the exit status."""
    return output.ended("same-verdicts", lambda: _compare(argv))


def _compare(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="same-verdicts", description="Fake against real events.")
    parser.add_argument("scenarios", nargs="+", metavar="SCENARIO")
    parser.add_argument("--world", type=int, default=DEFAULT_WORLD, metavar="N")
    options = parser.parse_args(argv)
    ended: dict[str, Rows] = {}
    with tempfile.TemporaryDirectory(prefix="testbed-verdicts-") as folder:
        for device in (FAKE, REAL):
            out = Path(folder) / f"{device}.json"
            status = _run(options.scenarios, device, options.world, out)
            if status in _CANNOT_RUN:
                return status
            ended[device] = _rows(out)
    print(table(ended[FAKE], ended[REAL]))
    unlike = [name for name in ended[FAKE] if not alike(ended[FAKE], ended[REAL], name)]
    print(f"\n{len(ended[FAKE])} scenarios, {len(unlike)} of them ended otherwise on the GPU")
    return NOT_AS_EXPECTED if unlike else AS_EXPECTED


def _run(scenarios: Sequence[str], device: str, world: int, out: Path) -> int:
    command = [sys.executable, "-m", "testbed", "run", *scenarios, "--backend", "gloo"]
    command += ["--device", device, "--world", str(world), "--json", str(out)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        print(run.stdout)
    return run.returncode


def _rows(out: Path) -> Rows:
    document = msgspec.json.decode(out.read_bytes())
    return {row["scenario"]: row for row in document["runs"]}


def alike(fake: Rows, real: Rows, name: str) -> bool:
    """Whether the scenario ended in the same verdict, at the same step and ranks."""
    return name in real and all(fake[name][key] == real[name][key] for key in _COMPARED)


def table(fake: Rows, real: Rows) -> str:
    """Markdown, a line a scenario."""
    lines = ["| scenario | fake events | real events | |", "|---|---|---|---|"]
    for name, row in fake.items():
        verdict = "same" if alike(fake, real, name) else "DIFFERENT"
        lines.append(f"| {name} | {_told(row)} | {_told(real.get(name, {}))} | {verdict} |")
    return "\n".join(lines)


def _told(row: Mapping[str, Any]) -> str:
    if not row:
        return "did not run"
    oracle = f" by {row['oracle']}" if row["oracle"] else ""
    step = f", step {row['step']}" if row["step"] is not None else ""
    ranks = f", ranks {','.join(map(str, row['ranks']))}" if row["ranks"] else ""
    return f"{row['verdict']}{oracle}{step}{ranks}"


if __name__ == "__main__":
    sys.exit(main())
