"""What a rank that an exception ended says of it, whatever the exception is: bounded, and such that
it can be written; and whose fault it is.
"""

import ast
import linecache
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any, NamedTuple, TypeVar

from testbed.model.errors import EnvironmentFault
from testbed.model.events import Frame
from testbed.recorder import ownership
from testbed.recorder.ownership import Owner
from testbed.subjects import sglang
from testbed.subjects.face import FaceError

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
            lack = _lacking(each, subject)
            if lack:
                return lack
    words = _bounded(lambda: str(error), _MESSAGE_KEPT)
    if isinstance(error, EnvironmentFault) and not sglang.is_lifted(subject):
        return words
    frames = ownership.raised_in(error)
    if any(ownership.of_frame(frame) in _TO_BLAME for frame in frames):
        return ""
    return f"{_bounded(lambda: type(error).__name__, _TYPE_KEPT)}: {words}"


def _lacking(error: BaseException, subject: str) -> str:
    """What of SGLang's the testbed does not stand in for, and where it was asked for."""
    if isinstance(error, sglang.AbsentAttribute) and sglang.nobody_gives(subject, str(error.name)):
        return ""
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
    elif isinstance(error, TypeError):
        called = _called_by(error)
        if called is not None and _is_ours(called):
            return (
                f"{called.__qualname__} of {called.__module__} stands in for SGLang's and cannot "
                f"be called so: {error}{at}: if SGLang's own can, tell us; if not, the call is "
                "wrong there"
            )
    return ""


def _is_ours(called: Any) -> bool:
    function = getattr(called, "__func__", called)
    if isinstance(function, FunctionType):
        return ownership.of_file(function.__code__.co_filename) is Owner.TESTBED
    return isinstance(called, type) and ownership.of_class(called) is Owner.TESTBED


def _called_by(error: TypeError) -> Any:
    """What the subject called when the exception was raised, where that can be seen: a function
    whose parameters did not fit never had a frame of its own.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or ownership.of_frame(trace.tb_frame) is not Owner.SUBJECT:
        return None
    frame = trace.tb_frame
    positions: Any = getattr(frame.f_code, "co_positions", None)
    if positions is None:  # Python 3.10 knows no columns
        return None
    line, end_line, column, end_column = list(positions())[trace.tb_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return None
    text = [
        linecache.getline(frame.f_code.co_filename, number).encode()
        for number in range(line, end_line + 1)
    ]
    text[-1] = text[-1][:end_column]
    text[0] = text[0][column:]
    try:
        tree = ast.parse(b"(" + b"".join(text) + b")", mode="eval").body
        return _value_of(tree.func, frame) if isinstance(tree, ast.Call) else None
    except (SyntaxError, LookupError, AttributeError):
        return None


def _value_of(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name, or of attributes of one; asks for nothing else."""
    if isinstance(node, ast.Attribute):
        return getattr(_value_of(node.value, frame), node.attr)
    if not isinstance(node, ast.Name):
        raise LookupError
    return frame.f_locals[node.id] if node.id in frame.f_locals else frame.f_globals[node.id]


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
