"""What a rank that an exception ended says of it, whatever the exception is: bounded, and such that
it can be written; and whose fault it is.
"""

import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from testbed import ownership
from testbed.errors import EnvironmentFault
from testbed.ownership import Owner
from testbed.subjects import sglang
from testbed.subjects.face import FaceError
from testbed.trace.events import Frame

_TYPE_KEPT, _MESSAGE_KEPT, _TRACEBACK_KEPT = 200, 8 * 1024, 64 * 1024
_FRAMES_KEPT = 50  # of each exception of a chain
_TO_BLAME = frozenset({Owner.SUBJECT, Owner.FAULT})

T = TypeVar("T")


class LastWords(NamedTuple):
    """Fields of ``events.Raised`` but for the operation that it came out of."""

    type: str
    message: str
    traceback: str
    frames: list[Frame]


def last_words(error: BaseException) -> LastWords:
    """What there is to say of the exception. Never raises, whatever the exception does."""
    return LastWords(
        _bounded(lambda: type(error).__name__, _TYPE_KEPT),
        _bounded(lambda: str(error), _MESSAGE_KEPT),
        _bounded(lambda: _printed(error), _TRACEBACK_KEPT),
        [
            Frame(_written(one.function, _TYPE_KEPT), _written(one.site, _TYPE_KEPT), one[2])
            for one in _tried(lambda: ownership.told_frames(error), lambda _: [])
        ],
    )


def trouble_of(error: BaseException, subject: str) -> str:
    """Why the exception is the testbed's own failure, in a line; "" if it is the subject's fault.

    An exception that never passed through the subject's code is the testbed's own, and so is a
    release that cannot be lifted, or that asks a stand-in of ours for what it does not have.
    """
    if isinstance(error, FaceError):
        return ""
    if sglang.is_lifted(subject):
        for each in _chain(error):
            lack = _lacking(each)
            if lack:
                return lack
    words = _bounded(lambda: str(error), _MESSAGE_KEPT)
    if isinstance(error, EnvironmentFault):
        return words
    frames = ownership.raised_in(error)
    if any(ownership.of_frame(frame) in _TO_BLAME for frame in frames):
        return ""
    return f"{_bounded(lambda: type(error).__name__, _TYPE_KEPT)}: {words}"


def _lacking(error: BaseException) -> str:
    """What of SGLang's the testbed does not stand in for, and where it was asked for."""
    if isinstance(error, EnvironmentFault):
        return _bounded(lambda: str(error), _MESSAGE_KEPT)
    frames = ownership.told_frames(error)
    at = next((f" (read at {one.site})" for one in frames if one.is_subjects), "")
    if isinstance(error, AttributeError) and error.obj is not None:
        if ownership.of_object(error.obj) is Owner.TESTBED:
            return (
                f"{_named(error.obj)} stands in for SGLang's and has no {error.name}{at}: if "
                "SGLang's own has it, tell us; if not, the name is wrong there"
            )
    elif isinstance(error, ImportError):
        return f"{error}{at}: code under test can import nothing of SGLang's while it runs"
    return ""


def _named(value: object) -> str:
    """``TransferController of testbed.cache.transfers``; a module by its name."""
    if isinstance(value, type(ownership)):
        return value.__name__
    made = value if isinstance(value, type) else type(value)
    return f"{made.__qualname__} of {made.__module__}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that led to it or lie in it."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        before = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        waiting += [before] if before is not None else []
        waiting += ownership.in_group(each)


def _printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-_FRAMES_KEPT))


def _bounded(make: Callable[[], str], longest: int) -> str:
    return _written(
        _tried(make, lambda why: f"<{why} was raised when this was asked for>"), longest
    )


def _tried(make: Callable[[], T], instead: Callable[[str], T]) -> T:
    """What ``make`` gives; it runs code of the exception's class, which may do anything."""
    try:
        return make()
    except BaseException as error:  # noqa: BLE001 -- told, and the process ends soon
        return instead(type.__getattribute__(type(error), "__name__"))


def _written(text: str, longest: int) -> str:
    """The text without its middle if it is too long, lone surrogates written as escapes."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"
    return str.encode(text, "utf-8", "backslashreplace").decode()
