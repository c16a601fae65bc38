"""What copies between the pools cost on a GPU.

``python -m testbed.measure.bench_copies [--json OUT]``.

Pages go as transfers do: on a side stream, a memcpy per page and layer, between the device pool and
pinned memory. Times are the device's own, by the events at both ends. Exit status 3 without a GPU.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from testbed.console import output
from testbed.device import CudaDevice
from testbed.device.gpus import why_none
from testbed.model.exit_status import AS_EXPECTED, ENVIRONMENT
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock, Readiness

LAYERS, HEADS, HEAD_DIM = 4, 8, 128
PAGE_TOKENS = 16
PAGES = (1, 16, 256)
ROUNDS = 20


class Cost(NamedTuple):
    """Of one transfer. way: write (device to host) or load. ms: median over the rounds."""

    way: str
    pages: int
    ms: float
    gib_per_s: float


def measure(device: CudaDevice, rounds: int = ROUNDS) -> Iterator[Cost]:
    """Every way and size, one transfer at a time; the first round is not counted."""
    shape = (LAYERS, max(PAGES), HEADS, HEAD_DIM * PAGE_TOKENS)
    on_device, on_host = device.zeros(shape), device.host_zeros(shape)
    ways = {"write": (on_host, on_device), "load": (on_device, on_host)}
    for way, (target, source) in ways.items():
        for pages in PAGES:
            indices = torch.arange(pages)
            took = [_once(device, target, source, indices) for _ in range(rounds + 1)]
            ms = median(took[1:])
            moved = pages * source[:, 0].numel() * source.element_size()
            yield Cost(way, pages, ms, moved / (ms / 1e3) / (1 << 30))


def _once(
    device: CudaDevice, target: torch.Tensor, source: torch.Tensor, indices: torch.Tensor
) -> float:
    clock = Clock()
    clock.tick()
    recorder = ListRecorder(clock)
    start, finish = (device.event(clock, recorder, "", Readiness.steps(0)) for _ in range(2))
    device.launch(start, finish, lambda: device.copy_pages(target, indices, source, indices))
    finish.synchronize()
    return start.elapsed_time(finish)


def table(costs: Sequence[Cost]) -> str:
    """Markdown."""
    rows = (
        f"| {cost.way} | {cost.pages} | {cost.ms:.3f} | {cost.gib_per_s:.1f} |" for cost in costs
    )
    return "\n".join(["| way | pages | ms | GiB/s |", "|---|---:|---:|---:|", *rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    return output.ended("bench-copies", lambda: _measured(argv))


def _measured(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="bench-copies", description="Copies between the pools.")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write JSON to this file")
    options = parser.parse_args(argv)
    why = why_none()
    if why:
        print(f"bench-copies: {why}", file=sys.stderr)
        return ENVIRONMENT
    device = CudaDevice(0)
    costs = list(measure(device))
    page_kib = LAYERS * HEADS * HEAD_DIM * PAGE_TOKENS * 4 // 1024
    print(f"{device.versions()['gpu']}: pages of {page_kib} KiB in {LAYERS} layers", end="\n\n")
    print(table(costs))
    if options.json:
        options.json.write_text(json.dumps([cost._asdict() for cost in costs], indent=1) + "\n")
    return AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main())
