"""Where in the subject's code an exception or a stack was: frames of a traceback as Python prints
it, without those of what stands beneath the subject and around it.
"""

from typing import NamedTuple

# Where every blocked or broken rank stands in the end; what called it is what people look for.
_PLUMBING = (
    "/torch/",
    "/testbed/cache/",
    "/testbed/device/",
    "/testbed/events.py",
    "/testbed/faults/",
    "/testbed/subjects/__init__.py",
    "/testbed/subjects/face.py",
    "/testbed/trace/",
    "/testbed/world/",
    "/testbed/workloads/",
    "/threading.py",
    "<frozen ",
)
_BEGINNING = "Traceback (most recent call last):"


class Frame(NamedTuple):
    """One frame. site: ``file.py:12``."""

    function: str
    site: str
    is_subjects: bool


def raised(traceback: str) -> list[Frame]:
    """Where an exception was raised, innermost frame first; of a chain, the last exception."""
    last = traceback.rpartition(_BEGINNING)[2]
    return [_frame(line) for line in reversed(_lines(last))]


def stood(stack: str) -> list[Frame]:
    """Where a thread stood, innermost frame first, by a dump of its stack."""
    return [_frame(line) for line in _lines(stack)]


def of_subject(found: list[Frame]) -> list[Frame]:
    """Those in the subject's code."""
    return [frame for frame in found if frame.is_subjects]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith('File "')]


def _frame(line: str) -> Frame:
    _, path, rest = line.split('"', 2)
    number, _, function = rest.removeprefix(", line ").partition(" in ")
    site = f"{path.rpartition('/')[2]}:{number.rstrip(',')}"
    return Frame(function or "?", site, not any(part in path for part in _PLUMBING))
