"""The layer under ``torch.distributed``'s own names: every call is recorded, none is changed.

``install`` replaces the functions of the module ``torch.distributed`` in this process (a disposable
rank, so nothing is put back). What is recorded of a call: see ``events.Enter``. The calls go on to
torch with the arguments untouched; a Work that comes back is wrapped so that its ``wait`` is seen
too.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist

from testbed.topology import GroupSpec
from testbed.trace.events import Enter, Exit
from testbed.trace.recorder import Recorder

COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
)
MESSAGES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
VALUES_KEPT = 16

# Frames of these rooms, and of torch, are not the subject's own functions.
_NOT_SUBJECT = (
    "/torch/",
    "/testbed/trace/",
    "/testbed/world/",
    "/testbed/workloads/",
    "/testbed/cache/",
)

_REDUCE_OPS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


class Shim:
    """Records the torch.distributed calls of one rank.

    groups: process group -> its name and global ranks; ``None`` stands for the default group.
    """

    def __init__(self, recorder: Recorder, rank: int, groups: Mapping[Any, GroupSpec]) -> None:
        self._recorder = recorder
        self._rank = rank
        self._groups = dict(groups)
        self._ordinals: dict[Any, int] = {}
        self._dtypes: dict[Any, str] = {}
        self._is_subject: dict[CodeType, bool] = {}
        self._chains: dict[tuple[CodeType, ...], str] = {}
        self._failed: tuple[BaseException, str] | None = None

    def install(self) -> None:
        """Put the recording functions in place of torch's, in this process, for good."""
        for name in _PLACES:
            call = getattr(dist, name)
            end = MESSAGES.get(name)
            recorded = self._message(name, end, call) if end else self._collective(name, call)
            setattr(dist, name, recorded)

    def failed_op(self, error: BaseException) -> str:
        """The operation out of which ``error`` came, "" if it came out of none."""
        seen: BaseException | None = error
        while seen is not None:
            if self._failed is not None and seen is self._failed[0]:
                return self._failed[1]
            seen = seen.__cause__ or seen.__context__
        return ""

    def _collective(self, op: str, call: Callable[..., Any]) -> Callable[..., Any]:
        places = _PLACES[op]

        def recorded(*args: Any, **kwargs: Any) -> Any:
            tensor = _argument(places, args, kwargs, "tensor", "output_tensor")
            group = self._group(_argument(places, args, kwargs, "group"))
            reduce_op = _argument(places, args, kwargs, "op")
            root = _argument(places, args, kwargs, "src", "dst")
            ordinal = self._next(group.name)
            what = (
                op,
                group.name,
                ordinal,
                -1 if root is None else root,
                -1,
                "SUM" if reduce_op is None and "op" in places else _REDUCE_OPS.get(reduce_op, ""),
            )
            return self._run(call, args, kwargs, what, tensor)

        return recorded

    def _message(self, op: str, end: str, call: Callable[..., Any]) -> Callable[..., Any]:
        places = _PLACES[op]

        def recorded(*args: Any, **kwargs: Any) -> Any:
            tensor = _argument(places, args, kwargs, "tensor")
            group = self._group(_argument(places, args, kwargs, "group"))
            tag = _argument(places, args, kwargs, "tag") or 0
            peer = _argument(places, args, kwargs, end)
            within = _argument(places, args, kwargs, f"group_{end}")
            if within is not None:
                peer = group.ranks[within]
            elif peer is None:
                peer = -1
            pipe = (self._rank, peer) if end == "dst" else (peer, self._rank)
            ordinal = self._next((group.name, *pipe, int(tag)))
            what = (op, group.name, ordinal, peer, int(tag), "")
            return self._run(call, args, kwargs, what, tensor)

        return recorded

    def _run(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        what: tuple[Any, ...],
        tensor: Any,
    ) -> Any:
        is_tensor = isinstance(tensor, torch.Tensor)
        dtype, numel = (self._dtype(tensor), tensor.numel()) if is_tensor else ("", 0)
        shape = (*what, dtype, numel)
        caller = self._caller()
        self._recorder.add(Enter, *shape, _values(tensor), caller)
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # noted for the crash report, and raised on
            self._failed = (error, what[0])
            raise
        self._recorder.add(Exit, _values(tensor))
        if isinstance(result, dist.Work):
            return RecordedWork(self, result, shape, tensor)
        return result

    def waited(self, work: "RecordedWork", call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a ``wait`` on ``work`` around ``call(*args)``."""
        op, *shape = work.shape
        wait = "wait" if op in ("send", "isend") else f"wait_{op}"
        self._recorder.add(Enter, wait, *shape, _values(work.tensor), self._caller())
        try:
            result = call(*args)
        except BaseException as error:  # noted for the crash report, and raised on
            self._failed = (error, f"wait of {work.shape[0]}")
            raise
        self._recorder.add(Exit, _values(work.tensor))
        return result

    def _group(self, group: Any) -> GroupSpec:
        known = self._groups.get(group)
        if known is None:
            ranks = tuple(dist.get_process_group_ranks(group))
            known = self._groups[group] = GroupSpec(f"group{list(ranks)}", ranks)
        return known

    def _next(self, channel: Any) -> int:
        ordinal = self._ordinals.get(channel, 0)
        self._ordinals[channel] = ordinal + 1
        return ordinal

    def _dtype(self, tensor: torch.Tensor) -> str:
        name = self._dtypes.get(tensor.dtype)
        if name is None:
            name = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        return name

    def _caller(self) -> str:
        frame = sys._getframe(3)
        codes = []
        known = self._is_subject
        while frame is not None:
            code = frame.f_code
            own = known.get(code)
            if own is None:
                own = known[code] = not any(part in code.co_filename for part in _NOT_SUBJECT)
            if own:
                codes.append(code)
            elif codes:
                break  # left the subject: what called it is the rank's loop
            frame = frame.f_back  # type: ignore[assignment]
        chain = tuple(codes)
        text = self._chains.get(chain)
        if text is None:
            text = self._chains[chain] = ">".join(code.co_name for code in reversed(chain))
        return text


class RecordedWork:
    """A Work whose ``wait`` is recorded; everything else goes to torch's own."""

    def __init__(self, shim: Shim, work: Any, shape: tuple[Any, ...], tensor: Any) -> None:
        self._shim = shim
        self._work = work
        self.shape = shape
        self.tensor = tensor

    def wait(self, *args: Any) -> Any:
        """torch's ``wait``, recorded with this Work's channel and ordinal."""
        return self._shim.waited(self, self._work.wait, args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


# Taken apart once, before any rank is forked.
_PLACES: dict[str, dict[str, int]] = {
    name: {key: place for place, key in enumerate(inspect.signature(call).parameters)}
    for name in (*COLLECTIVES, *MESSAGES)
    if (call := getattr(dist, name, None)) is not None
}


def _argument(
    places: dict[str, int], args: tuple[Any, ...], kwargs: dict[str, Any], *names: str
) -> Any:
    for name in names:
        if name in kwargs:
            return kwargs[name]
        place = places.get(name)
        if place is not None and place < len(args):
            return args[place]
    return None


def _values(tensor: Any) -> list[int]:
    # Only small integer tensors on the CPU: reading one from a GPU would synchronise the stream.
    if (
        isinstance(tensor, torch.Tensor)
        and tensor.numel() <= VALUES_KEPT
        and not tensor.is_floating_point()
        and tensor.device.type == "cpu"
    ):
        return [int(value) for value in tensor.flatten().tolist()]
    return []
