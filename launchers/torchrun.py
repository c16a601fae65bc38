"""Starts torchrun on this machine and sees to it that neither outlives the other's reason to be.

``python -m launchers.torchrun HOSTS FOLDER MODULE``. Standard input is a pipe that the controller
holds: when it closes (the controller ended, however), torchrun is ended. When torchrun ends, its
hosts, which run MODULE, end by their parent-death signal, and the last line it said goes to
standard output, for the controller. FOLDER, which holds all temporary files of the fleet, is
removed once the controller lets go. Whatever torchrun started and left behind is ended, too.

torchrun listens nowhere. Its rendezvous is a file in FOLDER, which only its owner may enter: over
TCP it would listen on every interface, and run whatever code a stranger sends there. Its agent
shares no store with the hosts, who need none.
"""

import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.death import MARK, adopt_orphans, die_with_parent, end_marked

_TERM_GRACE_S = 0.5


def torchrun_command(hosts: int, program: Sequence[str], folder: Path) -> list[str]:
    """torchrun with ``hosts`` workers that run ``program``, torchrun's own last words
    (``-m MODULE``). folder: private and empty, for its rendezvous.
    """
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={hosts}",
        "--rdzv-backend=c10d",
        "--rdzv-conf=store_type=file",
        f"--rdzv-endpoint={folder / 'rendezvous'}",
        "--rdzv-id=testbed",
        "--local-addr=127.0.0.1",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        *program,
    ]


def torchrun_environment(folder: Path) -> dict[str, str]:
    """Of torchrun and the hosts: one thread each, temporary files inside ``folder``, and the mark
    by which they are found when they have lost their parents.
    """
    return {
        **os.environ,
        MARK: str(folder),
        # Else the agent listens for its workers' sake, on every interface.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        "PYTHONUNBUFFERED": "1",
    }


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """torchrun, which is asked to leave when this process ends; its words go to ``log_of``."""
    supervisor = os.getpid()
    adopt_orphans()
    with log_of(folder).open("wb") as log:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(supervisor, signal.SIGTERM),
        )


def end(torchrun: "subprocess.Popen[bytes]", folder: Path, grace_s: float) -> int:
    """Ask torchrun to leave, and after ``grace_s`` end it and all that it started; returns its
    exit status.
    """
    torchrun.terminate()
    try:
        torchrun.wait(grace_s)
    except subprocess.TimeoutExpired:
        torchrun.kill()
    status = torchrun.wait()
    end_marked(str(folder))
    return status


def run(hosts: int, folder: Path, module: str) -> int:
    """Run torchrun until it or the controller ends; returns torchrun's exit status."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    environment = torchrun_environment(folder) | loopback
    torchrun = start(torchrun_command(hosts, ["-m", module], folder), folder, environment)
    with selectors.DefaultSelector() as waiting:
        waiting.register(os.pidfd_open(torchrun.pid), selectors.EVENT_READ)
        waiting.register(sys.stdin, selectors.EVENT_READ)
        waiting.select()
    if torchrun.poll() is not None:
        end_marked(str(folder))
        print(last_line(log_of(folder)) or f"exit status {torchrun.poll()}", flush=True)
        sys.stdin.read()
    return end(torchrun, folder, _TERM_GRACE_S)


def log_of(folder: Path) -> Path:
    """The file that torchrun's and its hosts' words go to."""
    return folder / "torchrun.log"


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
