"""Starts torchrun on this machine and sees to it that neither outlives the other's reason to be.

``python -m launchers.torchrun HOSTS FOLDER MODULE``. Standard input is a pipe that the controller
holds: when it closes (the controller ended, however), torchrun is ended. When torchrun ends, its
hosts, which run MODULE, end by their parent-death signal, and the last line it said goes to
standard output, for the controller. FOLDER, which holds all temporary files of the fleet, is
removed once the controller lets go.
"""

import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.death import die_with_parent

_TERM_GRACE_S = 0.5


def torchrun_command(
    hosts: int,
    module: str,
    *,
    nodes: int = 1,
    endpoint: str = "127.0.0.1:0",
    own_address: str = "127.0.0.1",
    more: Sequence[str] = (),
) -> list[str]:
    """torchrun for one machine: ``hosts`` workers that run ``module``, by default with a rendezvous
    of its own on a port that the kernel chooses. endpoint: HOST:PORT of the rendezvous, for several
    nodes.
    """
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={hosts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--local-addr={own_address}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        *more,
        "-m",
        module,
    ]


def torchrun_environment(folder: Path) -> dict[str, str]:
    """The hosts' environment: one thread each, loopback only, temporary files inside ``folder``."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "RES_OPTIONS": "timeout:1 attempts:1",
        "TMPDIR": str(folder),
        "PYTHONUNBUFFERED": "1",
    }


def run(hosts: int, folder: Path, module: str) -> int:
    """Run torchrun until it or the controller ends; returns torchrun's exit status."""
    supervisor = os.getpid()
    with (folder / "torchrun.log").open("wb") as log:
        torchrun = subprocess.Popen(
            torchrun_command(hosts, module),
            env=torchrun_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(supervisor, signal.SIGTERM),
        )
    with selectors.DefaultSelector() as waiting:
        waiting.register(os.pidfd_open(torchrun.pid), selectors.EVENT_READ)
        waiting.register(sys.stdin, selectors.EVENT_READ)
        waiting.select()
    if torchrun.poll() is not None:
        print(last_line(folder / "torchrun.log") or f"exit status {torchrun.poll()}", flush=True)
        sys.stdin.read()
    else:
        torchrun.terminate()
        try:
            torchrun.wait(_TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            torchrun.kill()
    return torchrun.wait()


def last_line(log: Path) -> str:
    """What a log ends with, but for lines without a word: torchrun's messages end with rulers."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if any(map(str.isalpha, line))), "")


def main() -> int:
    """Entry point; returns the exit status."""
    hosts, folder, module = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    try:
        return run(hosts, folder, module)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
