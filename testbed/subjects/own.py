"""A subject of your own, by name: ``package.module:Class``.

The class, or whatever else can be called, is given ``(cache, controller, groups, scenario)`` of one
rank and returns a ``base.Subject``. Its module is imported once by the host, before any rank is
forked: it must run no torch operation and start no thread then.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any

from testbed.errors import BadInput, brief
from testbed.ownership import claim_class, claim_package
from testbed.subjects.base import Subject

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

Makes = Callable[..., Subject]


def is_own(name: str) -> bool:
    """Whether the name has the form ``package.module:Class``."""
    return _NAME.fullmatch(name) is not None


def find(name: str) -> Makes:
    """What makes the subject. Raises BadInput if the module or the name in it cannot be had."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(
            f"subject {brief(name)}: {error}: is the folder on PYTHONPATH, or the working folder?"
        ) from error
    made: Any = getattr(module, attribute, None)
    if not callable(made):
        raise BadInput(
            f"subject {brief(name)}: {module_name} has nothing to call named {attribute!r}"
        )
    # What the package raises is the subject's doing, wherever it is installed.
    claim_package(module_name)
    if isinstance(made, type):
        claim_class(made)
    makes: Makes = made
    return makes
