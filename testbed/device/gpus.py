"""Which GPUs this machine has, without touching CUDA: a process that forks ranks must not."""

import os
import re
import shutil
import subprocess
from functools import cache
from typing import NamedTuple

from testbed.model.errors import BadInput, EnvironmentFault
from testbed.model.topology import Topology

VISIBLE_ENV = "CUDA_VISIBLE_DEVICES"

_LINE = re.compile(r"GPU (\d+): (.+?)(?: \(UUID: (.+?)\))?$")
_LIMIT_S = 30.0


class Gpu(NamedTuple):
    """One GPU as nvidia-smi lists it."""

    number: str
    name: str
    uuid: str


class Listing(NamedTuple):
    """The GPUs that may be used; why_none says in a few words why there are none."""

    gpus: tuple[Gpu, ...]
    why_none: str = ""


@cache
def listing() -> Listing:
    """What nvidia-smi lists, of that what CUDA_VISIBLE_DEVICES leaves; asked once a process."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Listing((), "no nvidia-smi")
    try:
        run = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Listing((), f"nvidia-smi fails: {error}")
    if run.returncode != 0:
        return Listing((), f"nvidia-smi fails: {' '.join((run.stdout or run.stderr).split())}")
    found = [
        Gpu(*match.groups("")) for line in run.stdout.splitlines() if (match := _LINE.match(line))
    ]
    visible = os.environ.get(VISIBLE_ENV)
    seen = found if visible is None else _visible(found, visible)
    hidden = f"{VISIBLE_ENV}={visible} hides all {len(found)}" if found else "nvidia-smi lists none"
    return Listing(tuple(seen), "" if seen else hidden)


def _visible(found: list[Gpu], visible: str) -> list[Gpu]:
    """As CUDA reads it: in this order, up to the first entry that names none."""
    seen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        named = [
            gpu for gpu in found if entry == gpu.number or (entry and gpu.uuid.startswith(entry))
        ]
        if len(named) != 1:
            break
        seen += named
    return seen


def why_none() -> str:
    """Why no rank can use a GPU here, empty if one can."""
    listed = listing()
    if not listed.gpus:
        return f"this machine has no GPU ({listed.why_none})"
    return "" if _built_for_cuda() else "this build of torch has no CUDA: install one that has"


def check_usable() -> int:
    """The number of GPUs. Raises EnvironmentFault if there is none or torch cannot use one."""
    why = why_none()
    if why:
        raise EnvironmentFault(f"{why}; without a GPU leave --backend nccl and --device cuda out")
    return len(listing().gpus)


def check_one_each(topology: Topology) -> None:
    """Raise BadInput if NCCL has too few GPUs for every rank to have one of its own."""
    gpus = check_usable()
    if topology.size > gpus:
        raise BadInput(
            f"NCCL needs a GPU per rank: {topology} has {topology.size} ranks, this machine {gpus}:"
            " take a smaller topology, or --backend gloo --device cuda, where ranks share one"
        )


def _built_for_cuda() -> bool:
    # torch/version.py says it; importing torch is for processes that need it anyway.
    from torch.version import cuda

    return cuda is not None
