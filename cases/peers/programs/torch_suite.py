"""PyTorch's own ``DistributedTest`` for gloo, from the wheel: one of its methods at a time, on
ranks that exist already instead of those that its harness would start.
"""

import os
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

MODULE = "torch.testing._internal.distributed.distributed_test"
FOLDER = "TESTBED_FOLDER"
PASSED = "passed"
_FOLDERS = ("barrier", "test_dir", "init_dir")
_TIMEOUT = timedelta(seconds=100)
_SEED = 1234


def prepare() -> Any:
    """The module of the tests, which reads the environment when it is imported."""
    os.environ["BACKEND"] = "gloo"
    import torch.testing._internal.distributed.distributed_test as suite

    return suite


def method_names() -> list[str]:
    """The methods there are in this torch."""
    return sorted(
        name for name in dir(prepare().DistributedTest._DistTestBase) if name.startswith("test_")
    )


def distributed_test(method: str) -> str:
    """Run that one: ``passed``, or why it was skipped. Raises what the test raises."""
    suite = prepare()
    folder = Path(os.environ[FOLDER]) / "suite"
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)

    class Case(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        """As torch's own tests put it together for their harness."""

    case = Case(method)
    case.rank = int(os.environ["RANK"])
    case.file_name = str(folder / "meet")
    dist.init_process_group(
        init_method=f"file://{folder}/meet",
        backend="gloo",
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=case.rank,
        timeout=_TIMEOUT,
    )
    case._barrier()
    suite.random.seed(_SEED)
    suite.np.random.seed(_SEED)
    suite.torch.manual_seed(_SEED)
    try:
        getattr(Case, method)(case)
    except unittest.SkipTest as skipped:
        return f"skipped: {skipped}"
    except SystemExit as left:
        reasons = {skip.exit_code: skip.message for skip in suite.TEST_SKIPS.values()}
        if left.code not in reasons:
            raise
        return f"skipped: {reasons[left.code]}"
    case._barrier()
    if dist.is_initialized():
        dist.destroy_process_group()
    return PASSED
