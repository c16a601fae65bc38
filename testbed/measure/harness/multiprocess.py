"""PyTorch's ``MultiProcessTestCase``: fresh processes for every test method."""

import os
from collections.abc import Callable

import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

from testbed.measure.harness.case import Kind, play
from testbed.measure.harness.unit import runner_of

# Its processes import this module anew: what was set in it would not be there.
_WORLD_ENV = "TESTBED_HARNESS_WORLD"


class Cases(MultiProcessTestCase):
    """A method a kind of case."""

    @property
    def world_size(self) -> int:
        """Processes of a test."""
        return int(os.environ[_WORLD_ENV])

    def setUp(self) -> None:
        """Start them."""
        super().setUp()
        self._spawn_processes()

    def test_null(self) -> None:
        """Nothing to do."""
        self._play(Kind.NULL)

    def test_crash(self) -> None:
        """A rank is killed."""
        self._play(Kind.CRASH)

    def test_skipped(self) -> None:
        """A rank leaves out a collective, and ends."""
        self._play(Kind.SKIPPED)

    def test_lives_on(self) -> None:
        """A rank leaves out a collective, and stays."""
        self._play(Kind.LIVES_ON)

    def _play(self, kind: Kind) -> None:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{self.file_name}",
            rank=self.rank,
            world_size=self.world_size,
        )
        play(kind)


def runner(world: int) -> Callable[[Kind], str]:
    """Runs a case; what it said of a failure, "" for none."""
    os.environ[_WORLD_ENV] = str(world)
    return runner_of(Cases)
