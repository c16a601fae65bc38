"""The layer under ``torch.distributed``'s own names: every call is recorded, none is changed.

``install`` replaces the functions of the module ``torch.distributed`` in this process (a disposable
rank, so nothing is put back). What is recorded of a call: see ``events.Enter``. The calls go on to
torch with the arguments untouched; a Work that comes back is wrapped so that its ``wait`` is seen
too, and its buffer is watched until then (``guard``).
"""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from testbed.topology import GroupSpec, has_tags
from testbed.trace.events import Enter, Exit, Group, Touched
from testbed.trace.guard import Awaited, Guard
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
_NAME_KEPT = 6

# Collectives with a root: torch takes rank 0 where these are given none.
_ROOT_0 = frozenset({"gather", "scatter", "broadcast_object_list", "gather_object"}) | {
    "scatter_object_list"
}
# Operations that write into the tensor they are given first.
_RECEIVE = frozenset(
    {"irecv", "all_reduce", "reduce", "broadcast", "scatter", "all_gather_into_tensor"}
)

# Frames of these rooms, and of torch, are not the subject's own functions. The model's traffic is
# told by its function, ``model``.
_NOT_SUBJECT = (
    "/torch/",
    "/testbed/trace/",
    "/testbed/world/",
    "/testbed/workloads/assemble.py",
    "/testbed/workloads/requests.py",
    "/testbed/workloads/scripted.py",
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
        self._callers: dict[tuple[object, ...], tuple[str, str]] = {}
        self._failed: tuple[BaseException, str] | None = None
        self._inside = False

    def install(self, inside: Sequence[Callable[[str], None]] = ()) -> None:
        """Put the recording functions in place of torch's, in this process, for good.

        inside: called with the name of each call once it is entered, before torch has it: what a
        rank does that dies in the middle of an operation.
        """
        for name in _PLACES:
            call = _through(inside, name, getattr(dist, name))
            end = MESSAGES.get(name)
            recorded = self._message(name, end, call) if end else self._collective(name, call)
            setattr(dist, name, recorded)
            if end:  # batch_isend_irecv and the object messages find them there
                setattr(distributed_c10d, name, recorded)
        dist.new_group = self._new_group(dist.new_group)

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
            if self._inside:  # torch's recv calls its irecv
                return call(*args, **kwargs)
            tensor = _argument(places, args, kwargs, "tensor", "output_tensor")
            group = self._group(_argument(places, args, kwargs, "group"))
            reduce_op = _argument(places, args, kwargs, "op")
            root = _argument(places, args, kwargs, "src", "dst")
            within = _argument(places, args, kwargs, "group_src", "group_dst")
            if within is not None:
                root = group.ranks[within]
            elif root is None and op in _ROOT_0:
                root = 0
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
            if self._inside:  # torch's recv calls its irecv
                return call(*args, **kwargs)
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
            ordinal = self._next((group.name, *pipe, int(tag) if has_tags(group.name) else 0))
            what = (op, group.name, ordinal, peer, int(tag), "")
            return self._run(call, args, kwargs, what, tensor)

        return recorded

    def _new_group(self, call: Callable[..., Any]) -> Callable[..., Any]:
        places = _places(call)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # torch's recv calls its irecv
                return call(*args, **kwargs)
            asked = _argument(places, args, kwargs, "ranks")
            ranks = list(range(dist.get_world_size()) if asked is None else asked)
            if _argument(places, args, kwargs, "use_local_synchronization"):
                makers = f"new group of {ranks}"  # only its members take part
                self._recorder.add(Group, makers, ranks)
            else:
                makers = self._group(None).name
            what = ("new_group", makers, self._next(makers), -1, -1, "", "", len(ranks))
            caller, site = self._called_from(2)
            self._recorder.add(Enter, *what, ranks, caller, (), site)
            made = self._call(call, args, kwargs, "new_group")
            self._recorder.add(Exit, ranks)
            if isinstance(made, dist.ProcessGroup):
                self._group(made)
            return made

        return recorded

    def _run(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        what: tuple[Any, ...],
        tensor: Any,
    ) -> Any:
        if isinstance(tensor, Awaited):
            tensor.guard.touch("written" if what[0] in _RECEIVE else "read")
        is_tensor = isinstance(tensor, torch.Tensor)
        dtype, numel = (self._dtype(tensor), tensor.numel()) if is_tensor else ("", 0)
        shape = tuple(tensor.shape) if is_tensor and tensor.dim() > 1 else ()
        caller, site = self._called_from(3)
        self._recorder.add(Enter, *what, dtype, numel, _values(tensor), caller, shape, site)
        result = self._call(call, args, kwargs, what[0])
        self._recorder.add(Exit, _values(tensor))
        if isinstance(result, dist.Work):
            return RecordedWork(self, result, (*what, dtype, numel), shape, tensor)
        return result

    def _call(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], op: str
    ) -> Any:
        self._inside = True
        try:
            return call(*args, **kwargs)
        except BaseException as error:  # noted for the crash report, and raised on
            self._failed = (error, op)
            raise
        finally:
            self._inside = False

    def guard(self, what: tuple[Any, ...], tensor: Any) -> Guard:
        """Watch the buffer of an operation that goes on after its call has returned."""
        op, group, ordinal, peer, tag = what[:5]

        def touched(how: str) -> None:
            at = self._called_from(2)
            self._recorder.add(Touched, how, op, group, ordinal, peer, tag, *at)

        receives = op in _RECEIVE and not (op == "broadcast" and peer == self._rank)
        return Guard(tensor, touched, receives=receives)

    def waited(self, work: "RecordedWork", call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a ``wait`` on ``work`` around ``call(*args)``."""
        op, *rest = work.what
        wait = "wait" if op in ("send", "isend") else f"wait_{op}"
        caller, site = self._called_from(3)
        values = _values(work.tensor)
        self._recorder.add(Enter, wait, *rest, values, caller, work.shape, site)
        result = self._call(call, args, {}, f"wait of {op}")
        self._recorder.add(Exit, _values(work.tensor))
        return result

    def _group(self, group: Any) -> GroupSpec:
        known = self._groups.get(group)
        if known is None:
            ranks = tuple(dist.get_process_group_ranks(group))
            # torch's own name tells two groups of the same members apart, and is the same for all.
            name = f"group{group.group_name[:_NAME_KEPT]}{list(ranks)}"
            known = GroupSpec(name, ranks)
            if dist.get_backend(group) == dist.Backend.NCCL:
                known = known.on_nccl()
            self._groups[group] = known
            self._recorder.add(Group, known.name, list(ranks))
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

    def _called_from(self, depth: int) -> tuple[str, str]:
        """The subject's functions from that frame on outwards, and the innermost one's line."""
        frame = sys._getframe(depth)
        codes: list[CodeType] = []
        known = self._is_subject
        inner = None
        while frame is not None:
            code = frame.f_code
            own = known.get(code)
            if own is None:
                own = known[code] = not any(part in code.co_filename for part in _NOT_SUBJECT)
            if own:
                inner = inner or frame
                codes.append(code)
            elif codes:
                break  # left the subject: what called it is the rank's loop
            frame = frame.f_back  # type: ignore[assignment]
        if inner is None:
            return "", ""
        at = (inner.f_lasti, *codes)  # cheaper than the line, and as exact
        told = self._callers.get(at)
        if told is None:
            chain = ">".join(code.co_name for code in reversed(codes))
            file = os.path.basename(inner.f_code.co_filename)
            told = self._callers[at] = (chain, f"{file}:{inner.f_lineno}")
        return told


class RecordedWork:
    """A Work whose ``wait`` is recorded; everything else goes to torch's own.

    what: op, group, ordinal, peer, tag, reduce op, dtype, numel of its operation. The buffer counts
    as the operation's until the work is waited for, or asked anything else that may tell that it is
    complete.
    """

    def __init__(
        self, shim: Shim, work: Any, what: tuple[Any, ...], shape: tuple[int, ...], tensor: Any
    ) -> None:
        self._shim = shim
        self._work = work
        self._guard = shim.guard(what, tensor)
        self.what = what
        self.shape = shape
        self.tensor = tensor

    def wait(self, *args: Any) -> Any:
        """torch's ``wait``, recorded with this Work's channel and ordinal."""
        self._guard.release()
        return self._shim.waited(self, self._work.wait, args)

    def is_completed(self) -> bool:
        """torch's ``is_completed``."""
        completed: bool = self._work.is_completed()
        if completed:
            self._guard.release()
        return completed

    def __getattr__(self, name: str) -> Any:
        self._guard.release()
        return getattr(self._work, name)


def _places(call: Callable[..., Any]) -> dict[str, int]:
    return {key: place for place, key in enumerate(inspect.signature(call).parameters)}


# Taken apart once, before any rank is forked.
_PLACES: dict[str, dict[str, int]] = {
    name: _places(call)
    for name in (*COLLECTIVES, *MESSAGES)
    if (call := getattr(dist, name, None)) is not None
}


def _through(
    hooks: Sequence[Callable[[str], None]], name: str, call: Callable[..., Any]
) -> Callable[..., Any]:
    if not hooks:
        return call

    def called(*args: Any, **kwargs: Any) -> Any:
        for hook in hooks:
            hook(name)
        return call(*args, **kwargs)

    return called


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
        and not isinstance(tensor, Awaited)
        and tensor.numel() <= VALUES_KEPT
        and not tensor.is_floating_point()
        and tensor.device.type == "cpu"
    ):
        return [int(value) for value in tensor.flatten().tolist()]
    return []
