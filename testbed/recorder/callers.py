"""Which of the subject's functions led to a call.

A *path* stands for the subject's frames that led to one place: where the innermost one is, and the
code of all of them. It is cheap to take, and what it says is worked out once. Frames of libraries
between two of the subject's are passed over; the testbed's end the path. The model's traffic counts
as a subject here, and is known by its function, ``model``.
"""

import os
from types import CodeType, FrameType

from testbed.recorder.ownership import Owner, of_frame

_OWN = frozenset({Owner.SUBJECT, Owner.MODEL})
# Code that called the subject, or that the subject called; never a part of it.
_APART = frozenset({Owner.TESTBED, Owner.FAULT})
Path = tuple[int, ...]


class Callers:
    """The paths of one rank. Several of its threads may ask at once."""

    def __init__(self) -> None:
        # By the id of a code object, which is kept alive: its own hash goes over all it holds.
        self._owns: dict[int, bool | None] = {}
        self._codes: list[CodeType] = []
        self._told: dict[Path, tuple[str, str]] = {(): ("", "")}

    def path(self, frame: FrameType | None) -> Path:
        """That of the subject's functions from ``frame`` on outwards; empty if there are none."""
        known = self._owns
        inner = None
        at: list[int] = []
        while frame is not None:
            code = frame.f_code
            try:
                own = known[id(code)]
            except KeyError:
                own = self._learn(frame)
            if own:
                if inner is None:
                    inner = frame
                    at.append(frame.f_lasti)  # cheaper than the line, and as exact
                at.append(id(code))
            elif own is None and inner is not None:
                break  # left the subject: what called it is the rank's loop
            frame = frame.f_back
        path = tuple(at)
        if inner is not None and path not in self._told:
            self._told[path] = _told(inner, self._owns)
        return path

    def told(self, path: Path) -> tuple[str, str]:
        """The functions of a path, outermost first, joined by ">"; the innermost one's line."""
        return self._told[path]

    def _learn(self, frame: FrameType) -> bool | None:
        """Whether the code is the subject's own (True), a library's (False), or the testbed's
        (None); remembered.
        """
        owner = of_frame(frame)
        own = None if owner in _APART else owner in _OWN
        self._codes.append(frame.f_code)  # first: the id must not be given to another code
        self._owns[id(frame.f_code)] = own
        return own


def _told(inner: FrameType, owns: dict[int, bool | None]) -> tuple[str, str]:
    names: list[str] = []
    frame: FrameType | None = inner
    while frame is not None and (own := owns[id(frame.f_code)]) is not None:
        if own:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    file = os.path.basename(inner.f_code.co_filename)
    return ">".join(reversed(names)), f"{file}:{inner.f_lineno}"
