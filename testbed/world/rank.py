"""One disposable rank: builds real process groups, runs the case's loop, leaves its record, exits.

Runs in a child that a host forked; talks to its host through a socket pair in single bytes. Its
record lies in the shared log that the host mapped before the fork.
"""

import faulthandler
import os
import platform
import signal
import traceback
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store  # where the type stubs have them

from testbed import __version__, subjects
from testbed.cache import TransferController
from testbed.device import CPU, CudaDevice
from testbed.errors import EnvironmentFault
from testbed.events import Clock
from testbed.protocols.groups import Groups
from testbed.scenario import Scenario
from testbed.subjects import sglang
from testbed.topology import GroupSpec, Topology
from testbed.trace.events import About, Raised
from testbed.trace.recorder import LogRecorder
from testbed.trace.shim import Shim
from testbed.workloads.assemble import assemble
from testbed.world.far_store import FarStore
from testbed.world.over_nccl import add_nccl
from testbed.world.seat import BROKE, DONE, EXIT_RAISED, EXIT_TROUBLE, GO, READY, RankSeat
from testbed.world.store import FolderStore

# gloo's own timeout is no judge of a case: the controller's deadline comes long before.
_GLOO_TIMEOUT = timedelta(minutes=30)
_BUILD_TIMEOUT = timedelta(seconds=30)
_NCCL_BUILD_TIMEOUT = timedelta(seconds=120)
_SUBJECT_ROOMS = ("/testbed/protocols/", "/testbed/subjects/", "/testbed/faults/")


def run_rank(seat: RankSeat) -> NoReturn:
    """Run the seat's scenario as its rank and never return: the process ends here."""
    # chain=True: after the dump the signal's default action ends the process, and so tells the
    # host that the stack is complete. All threads, since one of gloo's may take the signal.
    faulthandler.register(signal.SIGUSR1, file=seat.stack_fd, all_threads=True, chain=True)
    clock = Clock()
    recorder = LogRecorder(seat.log, clock)
    shim: Shim | None = None
    try:
        torch.set_num_threads(1)
        scenario = seat.scenario
        gpu = _gpu(scenario, seat.rank)
        # Held for the rank's life: torch keeps the C++ half of a Python store only.
        store = _store(seat)
        groups, names = build_groups(scenario.topology, seat.rank, store)
        if gpu is not None and scenario.backend == "nccl":
            agree = scenario.agree_on == "nccl"
            groups, names = add_nccl(groups, names, gpu.torch_device, _GLOO_TIMEOUT, agree=agree)
        shim = Shim(recorder, seat.rank, names)
        hardware = gpu if gpu is not None and scenario.device == "cuda" else CPU
        context = assemble(scenario, seat.rank, clock, recorder, groups, hardware)
        versions = _versions(scenario.subject) | (gpu.versions() if gpu is not None else {})
        recorder.add(About, context.subject.promises, versions, recorder.born_us)
        shim.install(context.bench.hooks.inside)
        seat.link.sendall(READY)
        if seat.link.recv(1) != GO:
            os._exit(0)
        for _ in range(scenario.steps):
            context.run_step()
        context.finish()
    except BaseException as error:  # noqa: BLE001 -- recorded, and the process ends below
        told = "".join(traceback.format_exception(error))
        inside = shim.failed_op(error) if shim is not None else ""
        recorder.add(Raised, type(error).__name__, str(error), told, inside)
        # Out of a torch.distributed call: the model's traffic meets the subject's mistakes too.
        if not (inside or by_subject(error, seat.scenario.subject)):
            os._exit(EXIT_TROUBLE)
        _stay(seat, BROKE)  # inside the except: what the frames hold stays alive, sends above all
        os._exit(EXIT_RAISED)
    _stay(seat, DONE)
    os._exit(0)


def _stay(seat: RankSeat, word: bytes) -> None:
    """Say how the loop ended, and wait with every connection open: an exit would cut them, and what
    slower ranks then still read, or not, would be up to the machine.
    """
    seat.link.sendall(word)
    seat.link.recv(1)


def _gpu(scenario: Scenario, rank: int) -> CudaDevice | None:
    """The rank's GPU, if the scenario wants one; here, after the fork, CUDA is first touched."""
    if not scenario.needs_gpu:
        return None
    return CudaDevice(place_on_machine(rank), alone=scenario.backend == "nccl")


def place_on_machine(rank: int) -> int:
    """How many ranks of this machine come before this one. torchrun numbers a machine's hosts; an
    oversubscribed host has every ``WORLD_SIZE``-th rank.
    """
    if "LOCAL_RANK" not in os.environ:
        return rank
    local, hosts, world = (
        int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    )
    return local + rank // world * hosts


def _store(seat: RankSeat) -> Store:
    ranks = seat.scenario.topology.size
    if seat.keys is not None and seat.scenario.backend == "nccl":
        raise EnvironmentFault(
            "NCCL finds its ranks on one machine only: start no hosts elsewhere, or use gloo"
        )
    if seat.keys is not None:
        return FarStore(seat.keys, seat.case, seat.rank, _BUILD_TIMEOUT)
    if seat.scenario.backend != "nccl":
        return FolderStore(seat.store, ranks, _BUILD_TIMEOUT)
    # NCCL's own threads ask the store too, and must not have to come through Python for it.
    store = FileStore(f"{seat.store}/store", ranks)
    store.set_timeout(_NCCL_BUILD_TIMEOUT)
    return store


def _versions(subject: str) -> dict[str, str]:
    return {
        "testbed": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        **subjects.versions(subject),
    }


def build_groups(
    topology: Topology, rank: int, store: Store, timeout: timedelta = _GLOO_TIMEOUT
) -> tuple[Groups, Mapping[Any, GroupSpec]]:
    """The default group and this rank's tp, cp and pp groups over gloo, and the names to report
    them by. timeout: gloo's own.
    """
    world_size = topology.size
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    names: dict[Any, GroupSpec] = {None: GroupSpec("world", tuple(range(world_size)))}
    names[dist.group.WORLD] = names[None]

    def group(spec: GroupSpec) -> dist.ProcessGroup | None:
        if len(spec.ranks) == 1:
            return None
        made: dist.ProcessGroup = dist.new_group(
            list(spec.ranks), timeout=timeout, backend="gloo", use_local_synchronization=True
        )
        names[made] = spec
        return made

    groups = Groups(
        topology=topology,
        rank=rank,
        tp=group(topology.tp_group(rank)),
        cp=group(topology.cp_group(rank)),
        pp=group(topology.pp_group(rank)),
        world=dist.group.WORLD,
    )
    return groups, names


def by_subject(error: BaseException, subject: str) -> bool:
    """Whether the exception is the subject's fault. One that never passed through its code is the
    testbed's own, and so is a release that cannot be lifted.
    """
    if isinstance(error, EnvironmentFault):
        return False
    # Lifted code that asks our stand-in for a name of its own controller: not its fault either.
    if isinstance(error, AttributeError) and isinstance(error.obj, TransferController):
        return not sglang.is_lifted(subject)
    frames = traceback.extract_tb(error.__traceback__)
    own = subjects.source(subject)
    return any(
        (own and frame.filename == own)
        or frame.filename.startswith("sglang")
        or any(room in frame.filename for room in _SUBJECT_ROOMS)
        for frame in frames
    )
