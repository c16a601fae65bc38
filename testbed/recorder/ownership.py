"""Whose code a frame is, by the real folders of the installed packages and by nothing else.

The model. Every Python file has one owner: the owner of the nearest folder above it (or of the file
itself) that is in the table, the subject where none is. The table has the folders of this testbed,
of torch, of the standard library and of installed packages; ``claim_package`` adds a package that
is under test although it is installed, ``claim_file`` a file name that lies on no disk, such as
those of lifted code. Names in a path mean nothing: a subject below a folder named ``torch`` or
``testbed`` is a subject.
"""

import builtins
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from testbed.model.events import Frame

_FRAMES_KEPT = 32
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.10 has none


class Owner(Enum):
    """Whose code it is. MODEL: the model's traffic, which runs beside the subject. FAULT: code of
    an injected fault. STANDARD, INSTALLED: the standard library, and packages beside it.
    """

    SUBJECT = "subject"
    MODEL = "model"
    FAULT = "fault"
    TESTBED = "testbed"
    TORCH = "torch"
    STANDARD = "standard library"
    INSTALLED = "installed package"


_ROOT = Path(__file__).resolve().parents[1]
# Packages of the testbed that lie beside this one, installed or not.
_BESIDE = ("launchers", "reports")
_ROOMS = {
    "protocols": Owner.SUBJECT,
    "subjects/minimal.py": Owner.SUBJECT,
    "subjects/bugs": Owner.SUBJECT,
    "workloads/traffic.py": Owner.MODEL,
    "faults": Owner.FAULT,
}

_claimed_files: set[str] = set()
_known: dict[str, Owner] = {}


def claim_file(name: str) -> None:
    """Code whose file name is ``name`` is the subject's, whether there is such a file or not."""
    _claimed_files.add(name)
    _known.pop(name, None)


def claim_package(module: str) -> None:
    """The package that the imported ``module`` belongs to is the subject's. Only an installed one
    has to be claimed; the testbed, torch and the standard library cannot be.
    """
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        found = sys.modules.get(".".join(parts[:depth]))
        file = getattr(found, "__file__", None)
        if not isinstance(file, str):
            continue  # a namespace: others may have their packages in it too
        path = os.path.realpath(file)
        folder = os.path.dirname(path) if hasattr(found, "__path__") else path
        if _owner_of_path(path) is Owner.INSTALLED:
            _table()[folder] = Owner.SUBJECT
            _known.clear()
        return


def claim_class(made: type) -> None:
    """As ``claim_package`` for every class that ``made`` is made of."""
    for each in made.__mro__:
        claim_package(each.__module__)


def of_file(name: str) -> Owner:
    """The owner of code by its file name, as code objects have it."""
    owner = _known.get(name)
    if owner is None:
        owner = _known[name] = _owner_of_name(name)
    return owner


def of_frame(frame: FrameType) -> Owner:
    """The owner of the code that a frame runs; of code without a file, of the module around it."""
    return _of_code(frame.f_code, frame.f_globals)


def of_class(made: type) -> Owner:
    """The owner of the module that defines the class."""
    file = getattr(sys.modules.get(made.__module__), "__file__", None)
    # Modules without a file are built into Python.
    return of_file(file) if isinstance(file, str) else Owner.STANDARD


def of_object(value: Any) -> Owner:
    """The owner of what the object is: a module, a class, or an instance of one."""
    if isinstance(value, type(sys)):
        return of_file(getattr(value, "__file__", None) or "<frozen >")
    return of_class(value if isinstance(value, type) else type(value))


def raised_in(error: BaseException) -> list[FrameType]:
    """The frames that an exception has passed through, outermost first; of a group, those of the
    exceptions in it too, behind its own.
    """
    frames: list[FrameType] = []
    waiting = [error]
    while waiting:
        each = waiting.pop(0)
        frames += _frames(each.__traceback__)
        waiting += in_group(each)
    return frames


def in_group(error: BaseException) -> Sequence[BaseException]:
    """The exceptions in a group; none of any other."""
    if not isinstance(error, _GROUP):
        return ()
    found: Sequence[BaseException] = getattr(error, "exceptions", ())
    return found


def told_frames(error: BaseException) -> list[Frame]:
    """Where an exception was raised, innermost frame first; of a group, of the first exception in
    it that passed through the subject's code, if its own frames did not.
    """
    told = [_told(frame, line) for frame, line in _walked(error.__traceback__)][::-1]
    if in_group(error) and not any(one.is_subjects for one in told):
        inner = (told_frames(each) for each in in_group(error))
        return next((each for each in inner if any(one.is_subjects for one in each)), told)
    # A recursion may have thousands, and the testbed's loop is the outermost of all.
    subjects = [one for one in told[_FRAMES_KEPT:] if one.is_subjects]
    return told[:_FRAMES_KEPT] + subjects[:_FRAMES_KEPT]


def of_stack(text: str) -> list[Frame]:
    """Where threads stood, innermost frame first, by a dump that ``faulthandler`` made in a process
    of the same Python.
    """
    lines = (line.strip() for line in text.splitlines())
    return [_of_line(line) for line in lines if line.startswith('File "')]


def _of_line(line: str) -> Frame:
    path, _, rest = line.removeprefix('File "').rpartition('", line ')
    number, _, function = rest.partition(" in ")
    # The dump writes all but ASCII as escapes, as Python does in a string.
    known = next((name for name in _claimed_files if ascii(name)[1:-1] == path), path)
    owner = Owner.STANDARD if known.startswith("<frozen ") else of_file(known)
    return Frame(function or "?", f"{os.path.basename(path)}:{number}", owner is Owner.SUBJECT)


def _told(frame: FrameType, line: int) -> Frame:
    code = frame.f_code
    site_of = f"{os.path.basename(code.co_filename)}:{line}"
    return Frame(code.co_name, site_of, of_frame(frame) is Owner.SUBJECT)


def _walked(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    return (frame for frame, _ in _walked(trace))


def _of_code(code: CodeType, names: dict[str, Any]) -> Owner:
    name = code.co_filename
    if not name.startswith("<") or name in _claimed_files:
        return of_file(name)
    if name.startswith("<frozen "):
        return Owner.STANDARD
    around = names.get("__file__")
    return of_file(around) if isinstance(around, str) else Owner.SUBJECT


def _owner_of_name(name: str) -> Owner:
    if name in _claimed_files:
        return Owner.SUBJECT
    if name.startswith("<frozen "):
        return Owner.STANDARD
    return _owner_of_path(os.path.realpath(name))


def _owner_of_path(path: str) -> Owner:
    table = _table()
    while path not in table:
        above = os.path.dirname(path)
        if above == path:
            return Owner.SUBJECT
        path = above
    return table[path]


@cache
def _table() -> dict[str, Owner]:
    """Folder, or file -> owner, of those that are known before any subject is."""
    paths = sysconfig.get_paths()
    table = {os.path.realpath(paths[name]): Owner.STANDARD for name in ("stdlib", "platstdlib")}
    installed = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
    table |= {
        os.path.realpath(each): Owner.INSTALLED for each in (*installed, site.getusersitepackages())
    }
    table |= {str(_ROOT.parent / name): Owner.TESTBED for name in _BESIDE}
    table |= dict.fromkeys(_folders("torch"), Owner.TORCH)
    table[str(_ROOT)] = Owner.TESTBED
    return table | {str(_ROOT / room): owner for room, owner in _ROOMS.items()}


def _folders(package: str) -> list[str]:
    # Found without an import: the hosts read stacks, and torch takes seconds.
    spec = importlib.util.find_spec(package)
    folders = None if spec is None else spec.submodule_search_locations
    return [os.path.realpath(each) for each in folders or ()]
