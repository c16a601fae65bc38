"""The recorder's layer under ``torch.distributed``, put on and taken off again between blocks.

A rank of a case keeps the layer for good; here one process has to run with it and without it.
"""

from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from testbed.trace.shim import COLLECTIVES, MESSAGES, Shim

_NAMES = (*COLLECTIVES, *MESSAGES, "new_group")
Functions = dict[tuple[ModuleType, str], Any]


def functions() -> Functions:
    """The functions of torch.distributed that are in place now."""
    return {
        (module, name): getattr(module, name)
        for module in (dist, distributed_c10d)
        for name in _NAMES
        if hasattr(module, name)
    }


def put(there: Functions) -> None:
    """Have these in place from now on."""
    for (module, name), function in there.items():
        setattr(module, name, function)


def recorded_by(shim: Shim) -> Functions:
    """What is in place once ``shim`` is installed. What is in place now stays there."""
    bare = functions()
    shim.install()
    recorded = functions()
    put(bare)
    return recorded
