"""Checks the environment: what the testbed needs, and what would make it slow."""

import argparse
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from launchers.torchrun import torchrun_command, torchrun_environment
from testbed.device.gpus import listing, why_none
from testbed.fleet import MakesFleet
from testbed.model.exit_status import AS_EXPECTED, ENVIRONMENT

OLDEST_TORCH = (2, 9)
LITTLE_SHM_MIB = 256

_START_LIMIT_S = 60.0
_GLOO_LIMIT_S = 20.0


@dataclass(frozen=True)
class Check:
    """One line of the doctor's. state: ``note`` is worth knowing, ``bad`` means it cannot run."""

    state: Literal["ok", "note", "bad"]
    name: str
    text: str

    def one_line(self) -> str:
        """``ok    torch          2.13.0``."""
        return f"{self.state:<5} {self.name:<14} {' '.join(self.text.split())}"


def options(parser: argparse.ArgumentParser) -> None:
    """The command has none."""


def run(_: argparse.Namespace, __: MakesFleet) -> int:
    """Run the command; returns the exit status."""
    healthy = True
    for check in examine():
        print(check.one_line(), flush=True)
        healthy &= check.state != "bad"
    return AS_EXPECTED if healthy else ENVIRONMENT


def examine() -> Iterator[Check]:
    """All checks, each as soon as it is made; takes a few seconds, for it starts torchrun once."""
    for check in _CHECKS:
        yield check()


def torch_version() -> Check:
    """Whether torch is there, in a version that is accepted."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Check("bad", "torch", "not installed: run make setup")
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if found < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return Check("bad", "torch", f"{version}: at least {oldest} is needed")
    return Check("ok", "torch", f"{version}, Python {sys.version.split()[0]}")


def torchrun() -> Check:
    """Start one worker that does nothing."""
    worker = ["--no-python", sys.executable, "-c", "pass"]
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="testbed-doctor-") as folder:
            run = subprocess.run(
                torchrun_command(1, worker, Path(folder)),
                env=torchrun_environment(Path(folder)),
                capture_output=True,
                text=True,
                timeout=_START_LIMIT_S,
            )
    except subprocess.TimeoutExpired:
        return Check("bad", "torchrun", f"one worker did not end within {_START_LIMIT_S:.0f} s")
    if run.returncode != 0:
        said = run.stderr.strip().splitlines() or ["it said nothing"]
        return Check("bad", "torchrun", f"exit status {run.returncode}: {said[-1]}")
    return Check("ok", "torchrun", f"starts a worker in {time.monotonic() - began:.1f} s")


def gloo() -> Check:
    """Two forked ranks make one all_reduce."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        return Check("bad", "gloo", f"torch cannot be imported: {error}")
    if not (dist.is_available() and dist.is_gloo_available()):
        return Check("bad", "gloo", "this build of torch has none")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="testbed-doctor-") as folder:
        ranks = [_fork(partial(_one_all_reduce, rank, Path(folder))) for rank in (0, 1)]
        statuses = [os.waitpid(rank, 0)[1] for rank in ranks]
    if any(statuses):
        return Check(
            "bad", "gloo", "an all_reduce of two forked ranks failed; their words are above"
        )
    return Check(
        "ok", "gloo", f"two forked ranks reduce in {(time.monotonic() - began) * 1e3:.0f} ms"
    )


def _one_all_reduce(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    from testbed.rank.folder_store import FolderStore

    torch.set_num_threads(1)
    limit = timedelta(seconds=_GLOO_LIMIT_S)
    store = FolderStore(str(folder), 2, limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    dist.all_reduce(torch.ones(1))


def fork() -> Check:
    """A child that is forked and asks for its parent-death signal."""
    status = os.waitpid(_fork(lambda: None), 0)[1]
    if status:
        return Check("bad", "fork", f"a forked child ended with wait status {status}")
    if not hasattr(os, "pidfd_open") or ctypes.CDLL(None).prctl is None:
        return Check("bad", "fork", "no pidfd_open or prctl: Linux 5.3 or newer is needed")
    return Check("ok", "fork", f"works on {sys.platform}, with pidfd and parent-death signal")


def _fork(body: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return pid


def shared_memory() -> Check:
    """Anonymous shared memory, which holds the recorders."""
    try:
        mmap.mmap(-1, LITTLE_SHM_MIB << 20).close()
    except OSError as error:
        return Check("bad", "shared memory", f"{LITTLE_SHM_MIB} MiB cannot be mapped: {error}")
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return Check("ok", "shared memory", "anonymous mappings work; no /dev/shm")
    free_mib = shutil.disk_usage(shm).free >> 20
    if free_mib < LITTLE_SHM_MIB:
        return Check("note", "shared memory", f"/dev/shm has {free_mib} MiB free: that is little")
    return Check("ok", "shared memory", f"/dev/shm has {free_mib} MiB free")


def cores() -> Check:
    """Processors that this process may use."""
    usable = len(os.sched_getaffinity(0))
    return Check("ok", "cores", f"{usable} usable of {os.cpu_count()}")


def gpus() -> Check:
    """GPUs, and whether torch is built for them."""
    listed = listing()
    if not listed.gpus:
        return Check("ok", "GPUs", f"none ({listed.why_none}); the CPU is enough")
    names = "; ".join(f"GPU {gpu.number}: {gpu.name}" for gpu in listed.gpus)
    unusable = why_none()
    return Check("note", "GPUs", f"{names}; {unusable}") if unusable else Check("ok", "GPUs", names)


def namespaces() -> Check:
    """Network namespaces, which stand for machines of their own."""
    tool = shutil.which("unshare")
    if tool is None:
        return Check("note", "namespaces", "no unshare: several machines cannot be imitated here")
    run = subprocess.run(
        [tool, "--user", "--map-root-user", "--net", "true"],
        capture_output=True,
        text=True,
        timeout=10,
    )
    if run.returncode != 0:
        return Check("note", "namespaces", f"user and network namespaces refused: {run.stderr}")
    return Check("ok", "namespaces", "user and network namespaces can be made")


_CHECKS: tuple[Callable[[], Check], ...] = (
    torch_version,
    torchrun,
    gloo,
    fork,
    shared_memory,
    cores,
    gpus,
    namespaces,
)
