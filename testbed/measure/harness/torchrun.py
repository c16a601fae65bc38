"""One ``torchrun`` per case: what a test does that has nothing else."""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

from launchers.torchrun import torchrun_command
from testbed.death import die_with_parent
from testbed.measure.harness.case import Kind, play
from testbed.measure.harness.contender import NO_VERDICT, Ended, ended
from testbed.measure.harness.killing import run_for
from testbed.model.errors import EnvironmentFault

_LAUNCH_LIMIT_S = 120.0
_ROOT = "Root Cause"


class OneTorchrun:
    """A launch of ``world`` processes for every case."""

    name = "one torchrun per case"
    isolates = True

    def __init__(self, world: int) -> None:
        self._world = world

    def null_ms(self, count: int) -> list[float]:
        """Whole launches: there is nothing that comes once."""
        taken = []
        for _ in range(count):
            case = self._launch(Kind.NULL, _LAUNCH_LIMIT_S)
            if not case.passed or case.ms is None:
                raise EnvironmentFault(f"torchrun: {case.told}")
            taken.append(case.ms)
        return taken

    def fault(self, kind: Kind, patience_s: float) -> tuple[Ended, Ended]:
        """The launch that fails, and another one."""
        return self._launch(kind, patience_s), self._launch(Kind.NULL, _LAUNCH_LIMIT_S)

    def _launch(self, kind: Kind, limit_s: float) -> Ended:
        with tempfile.TemporaryDirectory(prefix="testbed-harness-") as folder:
            return self._launch_in(Path(folder), kind, limit_s)

    def _launch_in(self, folder: Path, kind: Kind, limit_s: float) -> Ended:
        # Not ``--standalone``, which is open to the network: it and the ranks meet in files.
        program = ["-m", "testbed.measure.harness.torchrun", kind.value, str(folder / "ranks")]
        command = torchrun_command(self._world, program, folder)
        began = time.monotonic()
        run = run_for(command, limit_s)
        if run is None:
            return NO_VERDICT
        ms = (time.monotonic() - began) * 1e3
        # Ranks listed before it are those that torchrun saw fail after the first.
        _, _, root = run.stderr.rpartition(_ROOT)
        said = _one_line(root) or run.stderr
        return ended(ms, said, passed=run.returncode == 0)


def _one_line(root: str) -> str:
    wanted = ("rank", "exitcode", "traceback")
    parts = [line.strip() for line in root.splitlines() if line.strip().startswith(wanted)]
    return "root cause: " + ", ".join(parts) if parts else ""


def main() -> None:
    """One rank, as torchrun starts it: in a session of its own, which a kill of ours misses."""
    die_with_parent(os.getppid())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=world
    )
    play(Kind(sys.argv[1]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
