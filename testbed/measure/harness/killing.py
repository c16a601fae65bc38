"""Child processes that do not outlast our patience, nor do theirs."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence


def environment() -> dict[str, str]:
    """One thread a process, as everywhere here, and nothing that listens beyond loopback."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def end_all(process: subprocess.Popen[str]) -> None:
    """End a process that leads a session of its own, and everything in that session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_for(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str] | None:
    """Run a command; None if it was not over by then, and everything it started is ended."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end_all(process)
        return None
    return subprocess.CompletedProcess(command, process.returncode, "", said)
