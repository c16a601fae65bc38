"""Operations that C++ code starts by itself: DDP's reducer, functional collectives and what is made
of them, such as DTensor.

They meet the others at torch's dispatcher, where each operation is an operator of the namespace
``c10d``. A kernel put before torch's own costs every operation some microseconds, so these are put
there only when one of the few ways into such C++ code is first taken: the operators of the
namespace ``_c10d_functional``, and the entries that DDP has.

Not seen: that C++ code waits for an operation, but for ``wait_tensor``. A rank that is blocked in
DDP's reducer counts as running.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.library import Library

from testbed.recorder.arguments import Asked, of_kernel
from testbed.recorder.guard import tensors_in
from testbed.recorder.operations import FORMS, Form
from testbed.recorder.works import Pending

_Reducer: Any = torch._C._distributed_c10d.Reducer
_FUNCTIONAL = "_c10d_functional"
# Before every backend, on in every thread and mode, and used by no operator that takes a tensor.
# Where it goes on from there the interpreter's lock is given up, which gloo's threads may want.
_KEY = "BackendSelect"
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_ENTRIES = ("_verify_params_across_processes", "_broadcast_coalesced")
_REDUCTIONS = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"}


class Layer(Protocol):
    """The recording layer, as it is seen from here."""

    here: Any

    def ranks_of(self, group: Any) -> tuple[int, ...]:
        """Global ranks of a group."""

    def started(self, form: Form, asked: Asked, call: Callable[[], Any]) -> tuple[Any, Pending]:
        """Record an operation that C++ code starts."""

    def awaited(self, pending: Pending, call: Callable[[], Any]) -> Any:
        """Record that C++ code waits for one."""


class _Functional(threading.local):
    """The functional operator that the calling thread is in. started: the operations that it has
    started so far; None outside of one.
    """

    reduce_op = ""
    started: list[Pending] | None = None


class Native:
    """Sees what C++ code starts, and has ``layer`` record it. One a process."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._libraries: list[Any] = []
        self._armed = False
        self._functional = _Functional()
        # By the address of a result's memory; a later result there takes the place.
        self._pending: dict[int, list[Pending]] = {}

    def watch(self) -> None:
        """Be ready for the first call that leads into such code."""
        self._put(_FUNCTIONAL, dict.fromkeys(_operators(_FUNCTIONAL), self._in_functional))
        for name in _ENTRIES:
            entry = getattr(dist, name, None)
            if entry is not None:
                setattr(dist, name, self._arming(entry))
        _Reducer.__init__ = self._arming(_Reducer.__init__)

    def _arming(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*args: Any, **kwargs: Any) -> Any:
            self._arm()
            return call(*args, **kwargs)

        return armed

    def _arm(self) -> None:
        """See every operation that C++ code starts from now on."""
        if not self._armed:
            self._armed = True
            makers = {form.kernel: self._of(form) for form in FORMS if form.kernel}
            self._put("c10d", makers)

    def _put(self, namespace: str, makers: dict[str, Callable[[Any], Any]]) -> None:
        library: Any = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
        self._libraries.append(library)  # what it holds ends with it
        for name, maker in makers.items():
            operator = getattr(getattr(torch.ops, namespace), name).default
            library.impl(name, maker(operator), _KEY, with_keyset=True)

    def _of(self, form: Form) -> Callable[[Any], Any]:
        def maker(operator: Any) -> Any:
            read = of_kernel(form, operator, self._layer.ranks_of)

            def recorded(keyset: Any, *args: Any, **kwargs: Any) -> Any:
                below = keyset & _BELOW
                if self._layer.here.inside:
                    return operator.redispatch(below, *args, **kwargs)
                asked = read(args, kwargs)._replace(reduce_op=self._functional.reduce_op)
                result, pending = self._layer.started(
                    form, asked, lambda: operator.redispatch(below, *args, **kwargs)
                )
                if self._functional.started is not None:
                    self._functional.started.append(pending)
                return result

            return recorded

        return maker

    def _in_functional(self, operator: Any) -> Any:
        def waits(keyset: Any, tensor: torch.Tensor) -> Any:
            below = keyset & _BELOW
            done = self._pending.pop(_place(tensor), [])
            if self._layer.here.inside or not done:
                return operator.redispatch(below, tensor)
            return self._layer.awaited(done[-1], lambda: operator.redispatch(below, tensor))

        def starts(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            self._arm()
            functional = self._functional
            reductions = [one for one in args if isinstance(one, str) and one in _REDUCTIONS]
            functional.reduce_op = reductions[0].upper() if reductions else ""
            started: list[Pending] = []
            functional.started = started
            try:
                result = operator.redispatch(keyset & _BELOW, *args, **kwargs)
            finally:
                functional.reduce_op, functional.started = "", None
            for tensor in tensors_in(result) if started else ():
                self._pending[_place(tensor)] = started
            return result

        return waits if operator is torch.ops._c10d_functional.wait_tensor.default else starts


def _operators(namespace: str) -> list[str]:
    every: list[str] = torch._C._dispatch_get_all_op_names()
    names = (name.partition("::") for name in every)
    return [name for found, _, name in names if found == namespace and "." not in name]


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
