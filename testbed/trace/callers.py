"""Which of the subject's functions led to a call.

A *path* stands for the subject's frames that led to one place: where the innermost one is, and the
code of all of them. It is cheap to take, and what it says is worked out once.
"""

import os
from types import CodeType, FrameType

# Frames of these rooms, and of torch, are not the subject's own functions. The model's traffic is
# told by its function, ``model``.
_NOT_SUBJECT = (
    "/torch/",
    "/testbed/trace/",
    "/testbed/world/",
    "/testbed/bench/ranks/",
    "/testbed/workloads/assemble.py",
    "/testbed/workloads/calls.py",
    "/testbed/workloads/requests.py",
    "/testbed/workloads/scripted.py",
    "/testbed/cache/",
    "/testbed/subjects/sglang/",
)
# What is lifted bears names of files that are nowhere, a checkout's with its folder inside them.
_LIFTED = "sglang"

Path = tuple[int, ...]


class Callers:
    """The paths of one rank."""

    def __init__(self) -> None:
        # By the id of a code object, which is kept alive: its own hash goes over all it holds.
        self._is_subject: dict[int, bool] = {}
        self._codes: list[CodeType] = []
        self._told: dict[Path, tuple[str, str]] = {(): ("", "")}

    def path(self, frame: FrameType | None) -> Path:
        """That of the subject's functions from ``frame`` on outwards; empty if there are none."""
        known = self._is_subject
        inner = None
        at: list[int] = []
        while frame is not None:
            code = frame.f_code
            own = known.get(id(code))
            if own is None:
                own = self._learn(code)
            if own:
                if inner is None:
                    inner = frame
                    at.append(frame.f_lasti)  # cheaper than the line, and as exact
                at.append(id(code))
            elif inner is not None:
                break  # left the subject: what called it is the rank's loop
            frame = frame.f_back
        path = tuple(at)
        if inner is not None and path not in self._told:
            self._told[path] = _told(inner, depth=len(path) - 1)
        return path

    def told(self, path: Path) -> tuple[str, str]:
        """The functions of a path, outermost first, joined by ">"; the innermost one's line."""
        return self._told[path]

    def _learn(self, code: CodeType) -> bool:
        """Whether the function is the subject's own, remembered."""
        file = code.co_filename
        own = file.startswith(_LIFTED) or not any(part in file for part in _NOT_SUBJECT)
        self._codes.append(code)
        self._is_subject[id(code)] = own
        return own


def _told(inner: FrameType, depth: int) -> tuple[str, str]:
    names: list[str] = []
    frame: FrameType | None = inner
    while frame is not None and len(names) < depth:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    file = os.path.basename(inner.f_code.co_filename)
    return ">".join(reversed(names)), f"{file}:{inner.f_lineno}"
