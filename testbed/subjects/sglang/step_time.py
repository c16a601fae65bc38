"""The module ``time`` as lifted code has it: a scheduler step takes a second.

So that a timeout is over in the same step each time, on a machine of whatever load. A process runs
one rank, whose clock it reads.
"""

from testbed.cache import TransferController

_controller: TransferController | None = None


def follow(controller: TransferController) -> None:
    """Read this rank's clock from now on."""
    global _controller
    _controller = controller


def monotonic() -> float:
    """Seconds: the step that the rank is in; 0 on a rank that never had a controller."""
    return 0.0 if _controller is None else _controller.now


perf_counter = time = monotonic
