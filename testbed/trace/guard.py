"""Whether a buffer is left alone while an asynchronous operation still needs it.

A buffer that is being *sent* may be read but not written: torch counts the writes into a tensor, so
the wait shows whether there were any. A buffer that is being *received or reduced* may be neither
read nor written: until its wait it and the views made of it are ``Awaited``, whose torch functions
pass by here. Not seen: use through numpy, a raw pointer or a view made before the operation began.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

# Results of these are no tensor, yet they are made of the tensor's contents.
_READS = frozenset(
    {
        "item",
        "tolist",
        "equal",
        "allclose",
        "is_nonzero",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__contains__",
        "__repr__",
        "__format__",
    }
)
# Results of these are new tensors, yet only the tensor's shape and dtype went into them.
_SHAPES = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_")


class Awaited(torch.Tensor):
    """A tensor whose contents belong to an operation until that has been waited for."""

    guard: "Guard"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function as on a plain tensor, then tell what it did to the buffer."""
        with torch._C.DisableTorchFunctionSubclass():
            buffers = list(_awaited((args, kwargs or {})))
            before = [writes(buffer) for buffer in buffers]
            result = func(*args, **(kwargs or {}))
            for buffer, written in zip(buffers, before, strict=True):
                _judge(buffer, written, func, result)
        return result


class Guard:
    """Watches the buffer that an operation receives or reduces into, until its release.

    touched: called once, with ``read`` or ``written``, if the buffer is used too early.
    """

    __slots__ = ("_awaited", "_buffer", "_touched", "_writes")

    def __init__(self, buffer: Any, touched: Callable[[str], None]) -> None:
        self._buffer = buffer
        self._touched: Callable[[str], None] | None = touched
        self._writes = writes(buffer)
        self._awaited: tuple[torch.Tensor, ...] = ()
        # A parameter or a class of somebody else's must stay what it is.
        if type(buffer) is torch.Tensor:
            self.watch(buffer)

    def watch(self, tensor: torch.Tensor) -> None:
        """Watch a plain tensor over the same memory, too."""
        tensor.__class__ = Awaited
        assert isinstance(tensor, Awaited)
        tensor.guard = self
        self._awaited += (tensor,)

    def touch(self, how: str) -> None:
        """The buffer was read or written."""
        touched, self._touched = self._touched, None
        if touched is not None:
            touched(how)

    def release(self) -> None:
        """The operation is waited for: the buffer is its owner's again. Tells of writes into it
        that no function of a watched tensor made. Safe to call twice.
        """
        for tensor in self._awaited:
            tensor.__class__ = torch.Tensor
        if writes(self._buffer) != self._writes:
            self.touch("written")
        self._touched = None


def _judge(buffer: Awaited, written: int, func: Callable[..., Any], result: Any) -> None:
    guard, name = buffer.guard, getattr(func, "__name__", "")
    if writes(buffer) != written:
        guard.touch("written")
        return
    made = list(_tensors(result))
    views = [tensor for tensor in made if _same_memory(tensor, buffer)]
    copied = len(views) < len(made) and not name.startswith(_SHAPES)
    if copied or name in _READS:
        guard.touch("read")
    for view in views:
        if type(view) is torch.Tensor:
            guard.watch(view)


def _awaited(value: Any) -> Iterator[Awaited]:
    return (tensor for tensor in _tensors(value) if isinstance(tensor, Awaited))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def writes(buffer: Any) -> int:
    """How often a tensor was written into; 0 for one of inference mode, which does not count, and
    for what is no tensor.
    """
    if not isinstance(buffer, torch.Tensor) or buffer.is_inference():
        return 0
    return buffer._version
