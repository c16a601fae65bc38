"""PyTorch's ``MultiProcContinuousTest``: processes and default group serve all tests of a class."""

from collections.abc import Callable

from torch.testing._internal.common_distributed import MultiProcContinuousTest

from testbed.measure.harness.case import Kind, play
from testbed.measure.harness.unit import runner_of


class Cases(MultiProcContinuousTest):
    """A method a kind of case."""

    @classmethod
    def backend_str(cls) -> str:
        """Of the default group."""
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        """Where the tests run."""
        return "cpu"

    def test_null(self) -> None:
        """Nothing to do."""
        play(Kind.NULL)

    def test_crash(self) -> None:
        """A rank is killed."""
        play(Kind.CRASH)

    def test_skipped(self) -> None:
        """A rank leaves out a collective, and ends."""
        play(Kind.SKIPPED)

    def test_lives_on(self) -> None:
        """A rank leaves out a collective, and stays."""
        play(Kind.LIVES_ON)


def runner(world: int) -> Callable[[Kind], str]:
    """Runs a case; what it said of a failure, "" for none."""
    Cases.world_size = world
    return runner_of(Cases)
