"""``make gpu-check``: in a few minutes, what a machine with a GPU has to show; a page of it.

``python -m testbed.measure.gpu_check [--out PAGE] [--whole]``. The parts: the environment; real
events against fake ones, in one suite and by the verdicts of the same scenarios; ranks that share
GPUs over gloo; NCCL with a rank per GPU; copies between the pools. --whole runs every case of the
main job and not only some. Exit status 0, 1 if a part failed, 3 without a GPU.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from testbed import __version__
from testbed.console import output
from testbed.device.gpus import why_none
from testbed.measure.parts import Part, all_well, run_part, table
from testbed.model.exit_status import AS_EXPECTED, ENVIRONMENT, NOT_AS_EXPECTED

DEFAULT_PAGE = Path("reports/out/gpu-check.md")

SCENARIOS = (
    "skew-followers-slower-3",
    "skew-followers-faster",
    "skew-followers-ms",
    "skew-never-follower",
    "empty-leader-both",
    "empty-follower-both",
    "storage-sidecar",
    "prefill-3k5",
    "bug-no-wait",
    "bug-any-ready",
    "fault-out-of-order-follower",
    "fault-kill-follower",
)
"""Run with fake and with real events: clean ones, and one of each way to end."""

_PYTHON = sys.executable
_PYTEST = (_PYTHON, "-m", "pytest", "-q", "-rs")
_SOME = "pp2tp2 and (batched or 0.5.19)"


class Job(NamedTuple):
    """One part of the check. shown: its output belongs on the page."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})
    shown: bool = False


def jobs(whole: bool) -> list[Job]:
    """The parts, in order."""
    suite = (*_PYTEST, *map(str, sorted(Path("cases").glob("test_*.py"))), "--world", "4")
    some = () if whole else ("-k", _SOME)
    device = ("--device", "cuda", "--backend", "gloo")
    return [
        Job("environment", (_PYTHON, "-m", "testbed", "doctor"), shown=True),
        Job(
            "events",
            (*_PYTEST, "tests/test_device.py", "-k", "real GPU"),
            {"TESTBED_REAL_GPU": "1"},
        ),
        Job(
            "same verdicts",
            (_PYTHON, "-m", "testbed.measure.same_verdicts", *SCENARIOS),
            shown=True,
        ),
        Job("shared GPUs", (*suite, *device, *some)),
        Job("NCCL", (_PYTHON, "-m", "testbed.measure.nccl_suite", "-q")),
        Job("copies", (_PYTHON, "-m", "testbed.measure.bench_copies"), shown=True),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check and write its page; returns the exit status."""
    return output.ended("gpu-check", lambda: _check(argv))


def _check(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="gpu-check", description="What a GPU machine shows.")
    parser.add_argument("--out", type=Path, default=DEFAULT_PAGE, metavar="PAGE")
    parser.add_argument("--whole", action="store_true", help="every case of the main job")
    options = parser.parse_args(argv)
    why = why_none()
    if why:
        print(f"gpu-check: {why}: run it where there is one", file=sys.stderr)
        return ENVIRONMENT
    parts: list[Part] = []
    with tempfile.TemporaryDirectory(prefix="testbed-gpu-check-") as logs:
        planned = jobs(options.whole)
        for place, job in enumerate(planned):
            log = Path(logs) / f"{place}.log"
            parts.append(run_part(job.name, job.command, log, job.environment))
            print(parts[-1].one_line(), flush=True)
        written = page(planned, parts, versions())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(written)
    print(f"written to {options.out}")
    return AS_EXPECTED if all_well(parts) else NOT_AS_EXPECTED


def page(planned: Sequence[Job], parts: Sequence[Part], software: dict[str, str]) -> str:
    """The page, in Markdown: when, on what, and what was seen; the logs must still be there."""
    lines = [f"# GPU check of {time.strftime('%Y-%m-%d %H:%M %Z')}", ""]
    lines += [f"- {name}: {version}" for name, version in software.items()]
    lines += ["", table(parts)]
    for job, part in zip(planned, parts, strict=True):
        settings = "".join(f"{key}={value} " for key, value in job.environment.items())
        command = " ".join(_quoted(word) for word in ("python", *job.command[1:]))
        lines += ["", f"## {job.name}: {part.state}", "", f"`{settings}{command}`"]
        if job.shown or part.state == "failed":
            text = part.log.read_text(errors="replace").rstrip()
            lines += ["", "```", *text.splitlines()[-60:], "```"]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


def versions() -> dict[str, str]:
    """Of everything that ran, each asked where it can be known without touching CUDA here."""
    import torch

    asked: dict[str, Callable[[], str]] = {
        "testbed": lambda: f"{__version__}, commit {_said('git', 'rev-parse', '--short', 'HEAD')}",
        "Python": platform.python_version,
        "torch": lambda: str(torch.__version__),
        "CUDA of torch": lambda: str(torch.version.cuda),
        "NCCL of torch": lambda: _said(
            _PYTHON, "-c", "import torch; print(*torch.cuda.nccl.version(), sep='.')"
        ),
        "GPUs and driver": lambda: _said(
            "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
        ),
        "machine": lambda: f"{platform.platform()}, {os.cpu_count()} cores",
    }
    return {name: ask() for name, ask in asked.items()}


def _said(*command: str) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return f"unknown ({error})"
    return "; ".join(run.stdout.split("\n")).strip("; ") or "unknown"


if __name__ == "__main__":
    sys.exit(main())
