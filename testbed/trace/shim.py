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
from types import CodeType, FrameType
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
_WHOLE = frozenset(
    {torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool}
    | {torch.uint16, torch.uint32, torch.uint64}
)
_NAME_KEPT = 6

# Collectives with a root: torch takes rank 0 where these are given none.
_ROOT_0 = frozenset({"gather", "scatter", "broadcast_object_list", "gather_object"}) | {
    "scatter_object_list"
}
# Operations that only read their tensor: after the call it is what it was before.
_SEND = frozenset({"send", "isend"})
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

_Tensor, _Work = torch.Tensor, dist.Work

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
        self._add = recorder.add
        self._rank = rank
        self._groups = dict(groups)
        self._ordinals: dict[Any, int] = {}
        self._dtypes: dict[torch.dtype, tuple[str, bool]] = {}
        # By the id of a code object, which is kept alive: its own hash goes over all it holds.
        self._is_subject: dict[int, bool] = {}
        self._codes: list[CodeType] = []
        self._callers: dict[tuple[int, ...], tuple[str, str]] = {}
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
        tensor_of = _picker(places, "tensor", "output_tensor")
        group_of, reduce_op_of = _picker(places, "group"), _picker(places, "op")
        root_of = _picker(places, "src", "dst")
        within_of = _picker(places, "group_src", "group_dst")
        rooted = "src" in places or "dst" in places
        default_op = "SUM" if "op" in places else ""
        default_root = 0 if op in _ROOT_0 else -1

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # torch's recv calls its irecv
                return call(*args, **kwargs)
            group = self._group(group_of(args, kwargs))
            reduce_op = reduce_op_of(args, kwargs)
            root = default_root
            if rooted:
                within = within_of(args, kwargs)
                given = root_of(args, kwargs) if within is None else group.ranks[within]
                root = root if given is None else given
            ordinal = self._next(group.name)
            name = default_op if reduce_op is None else _REDUCE_OPS.get(reduce_op, "")
            what = (op, group.name, ordinal, root, -1, name)
            return self._run(call, args, kwargs, what, tensor_of(args, kwargs))

        return recorded

    def _message(self, op: str, end: str, call: Callable[..., Any]) -> Callable[..., Any]:
        places = _PLACES[op]
        tensor_of, group_of = _picker(places, "tensor"), _picker(places, "group")
        tag_of, peer_of = _picker(places, "tag"), _picker(places, end)
        within_of = _picker(places, f"group_{end}")
        sends = end == "dst"

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # torch's recv calls its irecv
                return call(*args, **kwargs)
            group = self._group(group_of(args, kwargs))
            tag = int(tag_of(args, kwargs) or 0)
            peer = peer_of(args, kwargs)
            within = within_of(args, kwargs)
            if within is not None:
                peer = group.ranks[within]
            elif peer is None:
                peer = -1
            rank, lane = self._rank, tag if has_tags(group.name) else 0
            pipe = (group.name, rank, peer, lane) if sends else (group.name, peer, rank, lane)
            what = (op, group.name, self._next(pipe), peer, tag, "")
            return self._run(call, args, kwargs, what, tensor_of(args, kwargs))

        return recorded

    def _new_group(self, call: Callable[..., Any]) -> Callable[..., Any]:
        places = _places(call)
        asked_of = _picker(places, "ranks")
        local_of = _picker(places, "use_local_synchronization")

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # torch's recv calls its irecv
                return call(*args, **kwargs)
            asked = asked_of(args, kwargs)
            ranks = list(range(dist.get_world_size()) if asked is None else asked)
            if local_of(args, kwargs):
                makers = f"new group of {ranks}"  # only its members take part
                self._add(Group, makers, ranks)
            else:
                makers = self._group(None).name
            what = ("new_group", makers, self._next(makers), -1, -1, "", "", len(ranks))
            caller, site = self._called_from(2)
            self._add(Enter, *what, ranks, caller, (), site)
            made = self._call(call, args, kwargs, "new_group")
            self._add(Exit, ranks)
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
        op = what[0]
        dtype, numel, readable = "", 0, False
        shape: tuple[int, ...] = ()
        if isinstance(tensor, _Tensor):
            numel = tensor.numel()
            dtype, whole = self._dtype(tensor.dtype)
            # Reading one from a GPU would synchronise the stream.
            readable = whole and numel <= VALUES_KEPT and tensor.is_cpu
            if tensor.dim() > 1:
                shape = tuple(tensor.shape)
        caller, site = self._called_from(3)
        awaited = isinstance(tensor, Awaited)
        if awaited:
            tensor.guard.touch("written" if op in _RECEIVE else "read")
        shown = readable and not awaited
        values = _listed(tensor) if shown else []
        self._add(Enter, *what, dtype, numel, values, caller, shape, site)
        self._inside = True
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # noted for the crash report, and raised on
            self._failed = (error, op)
            raise
        finally:
            self._inside = False
        self._add(Exit, _listed(tensor) if shown and op not in _SEND else values)
        if result is not None and isinstance(result, _Work):
            return RecordedWork(self, result, (*what, dtype, numel), shape, tensor, readable)
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
            self._add(Touched, how, op, group, ordinal, peer, tag, *at)

        receives = op in _RECEIVE and not (op == "broadcast" and peer == self._rank)
        return Guard(tensor, touched, receives=receives)

    def waited(self, work: "RecordedWork", call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a ``wait`` on ``work`` around ``call(*args)``."""
        op, *rest = work.what
        sends = op in _SEND
        caller, site = self._called_from(3)
        values = _listed(work.tensor) if work.readable else []
        wait = "wait" if sends else f"wait_{op}"
        self._add(Enter, wait, *rest, values, caller, work.shape, site)
        result = self._call(call, args, {}, f"wait of {op}")
        self._add(Exit, _listed(work.tensor) if work.readable and not sends else values)
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
            self._add(Group, known.name, list(ranks))
        return known

    def _next(self, channel: Any) -> int:
        ordinal = self._ordinals.get(channel, 0)
        self._ordinals[channel] = ordinal + 1
        return ordinal

    def _dtype(self, dtype: torch.dtype) -> tuple[str, bool]:
        """Its name, and whether it holds whole numbers."""
        known = self._dtypes.get(dtype)
        if known is None:
            name = str(dtype).removeprefix("torch.")
            known = self._dtypes[dtype] = (name, dtype in _WHOLE)
        return known

    def _called_from(self, depth: int) -> tuple[str, str]:
        """The subject's functions from that frame on outwards, and the innermost one's line."""
        frame: FrameType | None = sys._getframe(depth)
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
        if inner is None:
            return "", ""
        path = tuple(at)
        told = self._callers.get(path)
        if told is None:
            told = self._callers[path] = _told(inner, depth=len(path) - 1)
        return told

    def _learn(self, code: CodeType) -> bool:
        """Whether the function is the subject's own, remembered."""
        file = code.co_filename
        own = file.startswith(_LIFTED) or not any(part in file for part in _NOT_SUBJECT)
        self._codes.append(code)
        self._is_subject[id(code)] = own
        return own


class RecordedWork:
    """A Work whose ``wait`` is recorded; everything else goes to torch's own.

    what: op, group, ordinal, peer, tag, reduce op, dtype, numel of its operation. readable: its
    tensor's values are recorded. The buffer counts
    as the operation's until the work is waited for, or asked anything else that may tell that it is
    complete.
    """

    __slots__ = ("_guard", "_shim", "_work", "readable", "shape", "tensor", "what")

    def __init__(
        self,
        shim: Shim,
        work: Any,
        what: tuple[Any, ...],
        shape: tuple[int, ...],
        tensor: Any,
        readable: bool,
    ) -> None:
        self._shim = shim
        self._work = work
        self._guard = shim.guard(what, tensor)
        self.what = what
        self.shape = shape
        self.tensor = tensor
        self.readable = readable

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


def _picker(
    places: dict[str, int], *names: str
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """What finds the argument of the first of these names that the call has; None if not given."""
    there = [name for name in names if name in places]
    if not there:
        return lambda args, kwargs: None
    name, place = there[0], places[there[0]]

    def picked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        return args[place] if place < len(args) else None

    return picked


def _told(inner: FrameType, depth: int) -> tuple[str, str]:
    """The names of ``depth`` functions from that frame on outwards, and the frame's line."""
    names: list[str] = []
    frame: FrameType | None = inner
    while frame is not None and len(names) < depth:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    file = os.path.basename(inner.f_code.co_filename)
    return ">".join(reversed(names)), f"{file}:{inner.f_lineno}"


def _listed(tensor: torch.Tensor) -> list[int]:
    """The elements of a tensor of whole numbers, one after the other."""
    values: list[int] = tensor.tolist() if tensor.dim() == 1 else tensor.flatten().tolist()
    return list(map(int, values)) if tensor.dtype is torch.bool else values
