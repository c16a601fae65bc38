"""Whether a subject keeps to ``base.Subject``: what it lacks or answers wrongly is its own mistake,
told with its class, and not the testbed's.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import json

from testbed.model.errors import brief
from testbed.model.scenario import Call
from testbed.subjects.base import Calls, Map, Subject

_MOST = 1 << 63  # what a record can hold

MAPS: tuple[Map, ...] = ("write", "load", "backup", "prefetch")
_MEMBERS = ("promises", *(name for name in vars(Subject) if not name.startswith("_")))


_GIVEN = ("cache", "controller", "groups", "scenario")


class FaceError(TypeError):
    """A subject lacks a member of its face, or one answers something else than it must."""


def called_to_make(makes: Callable[..., Subject], name: str) -> Callable[..., Subject]:
    """``makes`` itself. Raises FaceError if it cannot be called with what a subject is made of."""
    try:
        inspect.signature(makes).bind(*_GIVEN)
    except TypeError as error:
        raise FaceError(f"{name} cannot be called with ({', '.join(_GIVEN)}): {error}") from error
    except ValueError:  # written in C: only the call itself can tell
        pass
    return makes


def check(subject: Subject) -> None:
    """Raises FaceError for the first member that is missing; its ``promises`` must be a dict."""
    for member in _MEMBERS:
        if not hasattr(subject, member):
            raise FaceError(
                f"{_told(subject)} lacks {member}: docs/own_subject.md lists what a subject has"
            )
        if member not in ("promises", "controller") and not callable(getattr(subject, member)):
            raise FaceError(f"{_told(subject)}.{member} cannot be called")
    if not isinstance(subject.promises, dict):
        raise FaceError(
            f"{_told(subject)}.promises is {brief(subject.promises)}: give a dict, {{}} for nothing"
        )
    try:
        json.encode(subject.promises)
    except (TypeError, ValueError, OverflowError) as error:
        raise FaceError(
            f"{_told(subject)}.promises is {brief(subject.promises)}: give names and plain values, "
            f"as JSON has them ({error})"
        ) from error


def pending(subject: Subject) -> dict[Map, list[Any]]:
    """What the subject remembers, by map. Raises FaceError."""
    told: Any = subject.pending()
    if not isinstance(told, Mapping):
        raise FaceError(f"{_told(subject)}.pending() returned {brief(told)}: give a dict of lists")
    return {name: _ids(subject, told, name) for name in MAPS}


def _ids(subject: Subject, told: Mapping[Map, Any], name: Map) -> list[Any]:
    if name not in told:
        raise FaceError(
            f"{_told(subject)}.pending() lacks the key {name!r}: give all of {', '.join(MAPS)}, "
            "an empty list where there is nothing"
        )
    ids = told[name]
    kind = str if name == "prefetch" else int
    if (
        isinstance(ids, Collection)
        and not isinstance(ids, str)
        and all(isinstance(one, kind) for one in ids)
    ):
        return list(ids)
    raise FaceError(
        f"{_told(subject)}.pending() has {brief(ids)} for {name!r}: give a list of {kind.__name__}"
    )


def outstanding_sends(subject: Subject) -> int:
    """How many sends the subject has not waited for yet. Raises FaceError."""
    count: Any = subject.outstanding_sends()
    if isinstance(count, int) and 0 <= count < _MOST:
        return count
    raise FaceError(
        f"{_told(subject)}.outstanding_sends() returned {brief(count)}: give a whole number from 0"
    )


def called(subject: Subject, call: Call) -> Callable[[str], object]:
    """What the loop calls of the subject for ``call``. Raises FaceError."""
    offered: Calls = getattr(subject, "calls", {})
    if call in offered:
        return offered[call]
    has = ", ".join(offered) or "none"
    raise FaceError(f"{_told(subject)} has no {call} to call (it has: {has})")


def _told(subject: Subject) -> str:
    made = type(subject)
    return f"{made.__module__}.{made.__qualname__}"
