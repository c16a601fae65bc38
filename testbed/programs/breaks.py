"""Damages chosen calls of one rank, above the recorder: it sees what a faulty program would do.

Every way to an operation that the recorder replaces is wrapped once more, outermost: the public
functions of ``torch.distributed`` and the methods of ``ProcessGroup``. What C++ code starts by
itself (DDP's reducer, functional collectives) does not come by here.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from testbed.programs.plan import Break
from testbed.recorder.operations import CALLED_BY_TORCH, FORMS, Form

_c10d: Any = torch._C._distributed_c10d  # the type stubs lack what is used of it

# Of the same size, so that the bytes still fit and nothing but the numbers is wrong.
_OTHER_DTYPE = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.int32: torch.float32,
    torch.int64: torch.float64,
    torch.bfloat16: torch.float16,
    torch.float16: torch.bfloat16,
    torch.uint8: torch.int8,
    torch.int8: torch.uint8,
}

Call = Callable[..., Any]


class _Here(threading.local):
    inside = False


_here = _Here()


def install(breaks: Sequence[Break], told: Callable[[str], None]) -> None:
    """Have this rank's chosen calls damaged. told: is given each damage that took effect."""
    if not breaks:
        return
    damages = [_Damage(one, told) for one in breaks]
    for form in FORMS:
        for name in form.public:
            call = getattr(dist, name, None)
            if call is None:  # torch of another version
                continue
            damaged = _around(form, call, damages, is_method=False)
            setattr(dist, name, damaged)
            if name in CALLED_BY_TORCH:
                setattr(distributed_c10d, name, damaged)
        for name in form.methods:
            call = getattr(dist.ProcessGroup, name)
            setattr(dist.ProcessGroup, name, _around(form, call, damages, is_method=True))


def _around(form: Form, call: Call, damages: Sequence["_Damage"], *, is_method: bool) -> Call:
    def made(*args: Any, **kwargs: Any) -> Any:
        _here.inside = True
        try:
            return call(*args, **kwargs)
        finally:
            _here.inside = False

    def damaged(*args: Any, **kwargs: Any) -> Any:
        if _here.inside:  # torch's send calls the group's
            return call(*args, **kwargs)
        for damage in damages:
            if damage.matches(form):
                gives_work = is_method or bool(kwargs.get("async_op"))
                return damage.apply(made, args, kwargs, gives_work=gives_work)
        return made(*args, **kwargs)

    return damaged


class _Damage:
    """One Break, and how far it is."""

    def __init__(self, what: Break, told: Callable[[str], None]) -> None:
        self._what = what
        self._told = told
        self._numbers: Iterator[int] = count()
        self._held: _Later | None = None

    def matches(self, form: Form) -> bool:
        return form.op == self._what.op

    def apply(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], *, gives_work: bool
    ) -> Any:
        """The call as the program is to have made it."""
        number = next(self._numbers)
        how, nth = self._what.how, self._what.nth
        if how == "swap" and number == nth + 1 and self._held is not None:
            if not self._held.is_made:  # else somebody has waited for it: too late to swap
                self._told(str(self._what))
            result = call(*args, **kwargs)
            self._held.made()
            return result
        if number != nth:
            return call(*args, **kwargs)
        if how == "swap":
            if not gives_work:  # the program goes on to use its tensors
                args = tuple(_copied(one) for one in args)
            self._held = _Later(lambda: call(*args, **kwargs))
            return self._held if gives_work else None
        self._told(str(self._what))
        if how == "dtype":
            others = {name: _retyped(one) for name, one in kwargs.items()}
            return call(*(_retyped(one) for one in args), **others)
        return _finished() if gives_work else None


class _Later:
    """Stands for the Work of a call that is made later, or when somebody waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._work: Any = None
        self.is_made = False

    def made(self) -> Any:
        """The Work, of the call made now at the latest."""
        if not self.is_made:
            self.is_made = True
            self._work = self._call()
        return self._work

    def wait(self, *args: Any) -> Any:
        """torch's own."""
        return self.made().wait(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made(), name)


def _finished() -> dist.Work:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result([])
    work: dist.Work = _c10d._create_work_from_future(future)
    return work


def _retyped(given: Any) -> Any:
    if isinstance(given, list):
        return [_retyped(one) for one in given]
    if isinstance(given, torch.Tensor) and given.dtype in _OTHER_DTYPE:
        return given.detach().view(_OTHER_DTYPE[given.dtype])
    return given


def _copied(given: Any) -> Any:
    return given.detach().clone() if isinstance(given, torch.Tensor) else given
