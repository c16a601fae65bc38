"""A subject of your own, by name: ``package.module:Class``.

The class, or whatever else can be called, is given ``(cache, controller, groups, scenario)`` of one
rank and returns a ``base.Subject``. Its module is imported once by the host, before any rank is
forked: it must run no torch operation and start no thread then.
"""

import importlib
import importlib.util
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.model.errors import BadInput, Terminated, brief
from testbed.recorder.ownership import claim_class, claim_package
from testbed.subjects import bad_code
from testbed.subjects.base import Subject

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

_LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platlib", "purelib")]

Makes = Callable[..., Subject]


def is_own(name: str) -> bool:
    """Whether the name has the form ``package.module:Class``."""
    return _NAME.fullmatch(name) is not None


def find(name: str) -> Makes:
    """What makes the subject. Raises BadInput if the module or the name in it cannot be had,
    BadCode where the module's own code is the reason.
    """
    module_name, _, attribute = name.partition(":")
    try:
        with bad_code.loading():
            module = importlib.import_module(module_name)
            made: Any = getattr(module, attribute, None)
    except (bad_code.Interrupted, Terminated):
        raise
    except BaseException as error:  # whatever the module's own code raises, SystemExit too
        told = bad_code.told(error, _is_theirs) or _told_of_file(error, module_name)
        raise bad_code.BadCode(f"subject {brief(name)}: {told}") from error
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


def _is_theirs(file: str) -> bool:
    """Whether a file is neither Python's, nor a library's, nor the testbed's."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    return path != Path(__file__).resolve() and not any(
        path.is_relative_to(folder) for folder in _LIBRARIES
    )


def _told_of_file(error: BaseException, module: str) -> str:
    """What is wrong where no line of theirs was run: no such module, or no Python in it."""
    file = _file_of(module)
    if file and not isinstance(error, ModuleNotFoundError):
        return f"{file}:{_line_of_nul(file)}: {type(error).__name__}: {error}"
    return f"{error}: is the folder on PYTHONPATH, or the working folder?"


def _file_of(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    return (spec.origin or "") if spec is not None else ""


def _line_of_nul(file: str) -> int:
    """Of a zero byte earlier Pythons do not say where it is; line 1 where there is none."""
    before, zero, _ = Path(file).read_bytes().partition(b"\0")
    return before.count(b"\n") + 1 if zero else 1
