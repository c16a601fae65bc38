"""Whether the buffers of an asynchronous operation are left alone while it still needs them.

A buffer that is being *sent* may be read but not written. torch counts the writes into a tensor and
its views together, so the count is evidence for a tensor that is no view; of a view, other parts of
whose memory are somebody else's to write, the bytes are compared. A buffer that is being *received
or reduced* may be neither read nor written: until the operation's wait it and the views made of it
are ``Awaited``, whose torch functions pass by here. Not seen: use through numpy, a raw pointer or a
view made before the operation began, and writes into large views that are being sent.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
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

# A copy of more would cost more than it can show.
_COMPARED_BYTES = 1 << 20


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
        """Run the function as on a plain tensor, then report what it did to the buffer."""
        with torch._C.DisableTorchFunctionSubclass():
            buffers = list(_awaited((args, kwargs or {})))
            before = [writes(buffer) for buffer in buffers]
            result = func(*args, **(kwargs or {}))
            for buffer, written in zip(buffers, before, strict=True):
                _judge(buffer, written, func, result)
        return result


class Guard:
    """Watches the buffers of one operation until its release.

    written: tensors it receives or reduces into. read: tensors it sends. touched: called once, with
    ``read`` or ``written``, if a buffer is used too early.
    """

    __slots__ = ("_awaited", "_counted", "_kept", "_touched")

    def __init__(
        self,
        written: Sequence[torch.Tensor],
        read: Sequence[torch.Tensor],
        touched: Callable[[str], None],
    ) -> None:
        self._touched: Callable[[str], None] | None = touched
        self._awaited: tuple[torch.Tensor, ...] = ()
        self._counted: tuple[tuple[torch.Tensor, int], ...] = ()
        self._kept: tuple[tuple[torch.Tensor, bytes], ...] = ()
        for buffer in written:
            if not _is_view(buffer):
                self._counted += ((buffer, writes(buffer)),)
            # A parameter or a class of somebody else's must stay what it is.
            if type(buffer) is torch.Tensor:
                self.watch(buffer)
        if read:
            self._watch_sent(written, read)

    def _watch_sent(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> None:
        results = {buffer.untyped_storage().data_ptr() for buffer in written}
        for buffer in read:
            if results and buffer.untyped_storage().data_ptr() in results:
                continue  # gathered or reduced in place: the operation itself may write there
            if not _is_view(buffer):
                self._counted += ((buffer, writes(buffer)),)
            elif (kept := _bytes(buffer)) is not None:
                self._kept += ((buffer, kept),)

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
        """The operation is waited for: the buffers are their owner's again. Reports writes that no
        function of a watched tensor made. Safe to call twice.
        """
        self._give_back()
        for buffer, count in self._counted:
            if writes(buffer) != count:
                self.touch("written")
        for buffer, kept in self._kept:
            if _bytes(buffer) != kept:
                self.touch("written")
        self.forget()

    def forget(self) -> None:
        """Watch no longer, and report nothing: nobody will wait for the operation."""
        self._give_back()
        self._touched = None
        self._counted = ()
        self._kept = ()

    def _give_back(self) -> None:
        for tensor in self._awaited:
            tensor.__class__ = torch.Tensor
        self._awaited = ()


def _judge(buffer: Awaited, written: int, func: Callable[..., Any], result: Any) -> None:
    guard, name = buffer.guard, getattr(func, "__name__", "")
    if writes(buffer) != written:
        guard.touch("written")
        return
    made = list(tensors_in(result))
    views = [tensor for tensor in made if _same_memory(tensor, buffer)]
    copied = len(views) < len(made) and not name.startswith(_SHAPES)
    if copied or name in _READS:
        guard.touch("read")
    for view in views:
        if type(view) is torch.Tensor:
            guard.watch(view)


def _awaited(value: Any) -> Iterator[Awaited]:
    return (tensor for tensor in tensors_in(value) if isinstance(tensor, Awaited))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value made of lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


_is_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view


def _bytes(tensor: torch.Tensor) -> bytes | None:
    """Its contents; None where they are too many, or do not lie in one piece of CPU memory."""
    if tensor.layout is not torch.strided or not (tensor.is_cpu and tensor.is_contiguous()):
        return None
    size = tensor.numel() * tensor.element_size()
    # Past torch's dispatcher: a mode that is on there would see, or change, an operation on it.
    return ctypes.string_at(tensor.data_ptr(), size) if 0 < size <= _COMPARED_BYTES else None


def writes(buffer: Any) -> int:
    """How often a tensor was written into; 0 for one of inference mode, which does not count, and
    for what is no tensor.
    """
    if not isinstance(buffer, torch.Tensor) or buffer.is_inference():
        return 0
    return buffer._version
