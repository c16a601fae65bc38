"""What a benchmark ran on: what has to be the same before two runs are compared."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

CALM_LOAD = 0.5
"""Load average per core above which the machine was busy with something else."""


def describe() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, kernel, Python, torch."""
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def load() -> float:
    """Runnable processes over the last minute, as the kernel averages them."""
    return round(os.getloadavg()[0], 2)


def _first(file: str, name: str) -> str:
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""
