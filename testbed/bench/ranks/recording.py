"""The recorder's layer under ``torch.distributed``, put on and taken off again between blocks.

A rank of a case keeps the layer for good; here one process has to run with it and without it.
"""

from testbed.recorder.shim import Functions


def functions(like: Functions) -> Functions:
    """What is in place now where ``like`` would put something."""
    # As it lies in the class: looked up, a method of torch would forget that it is one.
    return {(owner, name): vars(owner)[name] for owner, name in like}


def put(there: Functions) -> None:
    """Have these in place from now on."""
    for (owner, name), function in there.items():
        setattr(owner, name, function)
