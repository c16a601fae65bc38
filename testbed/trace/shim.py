"""The layer under ``torch.distributed``'s own names: every call is recorded, none is changed.

``install`` replaces the functions of the module ``torch.distributed`` in this process (a disposable
rank, so nothing is put back). What is recorded of a call: see ``events.Enter``. The calls go on to
torch with the arguments untouched; a Work that comes back is wrapped so that its ``wait`` is seen
too, and its buffer is watched until then (``guard``).
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from testbed.topology import GroupSpec, has_tags
from testbed.trace.callers import Callers, Path
from testbed.trace.events import Group, Operation, Touched
from testbed.trace.guard import Awaited, Guard, writes
from testbed.trace.recorder import OperationRecorder

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

# Operations whose calls are remembered by where they come from and all but their tensor.
_REMEMBERED = frozenset(MESSAGES) | {"all_reduce", "reduce", "broadcast"}
_SITES_KEPT = 64

_Tensor, _Work = torch.Tensor, dist.Work

_REDUCE_OPS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


class Shim:
    """Records the torch.distributed calls of one rank.

    groups: process group -> its name and global ranks; ``None`` stands for the default group.

    What can be known of a call before it is made is worked out at its first time in one place and
    remembered (``_Site``): between two ranks that wait for each other every microsecond counts, and
    after each wait the processor's caches are cold.
    """

    def __init__(
        self, recorder: OperationRecorder, rank: int, groups: Mapping[Any, GroupSpec]
    ) -> None:
        self._recorder = recorder
        self._add, self.enter, self.leave = recorder.add, recorder.enter, recorder.exit
        self._rank = rank
        self._groups = dict(groups)
        self._ordinals: dict[Any, Iterator[int]] = {}
        self._callers = Callers()
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
            told = self._message(name, end) if end else self._collective(name)
            recorded = self._recorded(name, call, told)
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

    def _recorded(self, op: str, call: Callable[..., Any], told: "_Teller") -> Callable[..., Any]:
        tensor_of = _picker(_PLACES[op], "tensor", "output_tensor")
        path_of, enter, leave = self._callers.path, self.enter, self.leave
        sites: dict[Path, list[_Site]] = {}
        remembered = op in _REMEMBERED

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # torch's recv calls its irecv
                return call(*args, **kwargs)
            path = path_of(sys._getframe(1))
            tensor = args[0] if args else None
            if remembered and type(tensor) is _Tensor:
                rest = args[1:]
                for site in sites.get(path, ()):
                    if (
                        site.rest == rest
                        and site.options == kwargs
                        and site.dtype is tensor.dtype
                        and site.shape == tensor.shape
                        and site.is_cpu is tensor.is_cpu
                    ):
                        break
                else:
                    site = self._site(told(args, kwargs), tensor, path, rest, kwargs)
                    sites[path] = [*sites.get(path, ())[1 - _SITES_KEPT :], site]
                before, after = site.before, site.after
            else:
                tensor = tensor_of(args, kwargs)
                site = self._site(told(args, kwargs), tensor, path, (), kwargs)
                before, after = site.before, site.after
                if isinstance(tensor, Awaited):
                    tensor.guard.touch("written" if op in _RECEIVE else "read")
                    before, after = _unread, None
            ordinal = next(site.ordinals)
            values = before(tensor)
            enter(site.known, ordinal, values)
            self._inside = True
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # noted for the crash report, and raised on
                self._failed = (error, op)
                raise
            finally:
                self._inside = False
            leave(after(tensor) if after else values)
            if result is not None and isinstance(result, _Work):
                return RecordedWork(self, result, site, ordinal, tensor)
            return result

        return recorded

    def _collective(self, op: str) -> "_Teller":
        places = _PLACES[op]
        group_of, reduce_op_of = _picker(places, "group"), _picker(places, "op")
        root_of = _picker(places, "src", "dst")
        within_of = _picker(places, "group_src", "group_dst")
        rooted = "src" in places or "dst" in places
        default_op = "SUM" if "op" in places else ""
        default_root = 0 if op in _ROOT_0 else -1

        def told(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Told:
            group = self._group(group_of(args, kwargs))
            reduce_op = reduce_op_of(args, kwargs)
            root = default_root
            if rooted:
                within = within_of(args, kwargs)
                given = root_of(args, kwargs) if within is None else group.ranks[within]
                root = root if given is None else given
            name = default_op if reduce_op is None else _REDUCE_OPS.get(reduce_op, "")
            return _Told(op, group.name, group.name, root, -1, name)

        return told

    def _message(self, op: str, end: str) -> "_Teller":
        places = _PLACES[op]
        group_of, tag_of = _picker(places, "group"), _picker(places, "tag")
        peer_of, within_of = _picker(places, end), _picker(places, f"group_{end}")
        sends = end == "dst"

        def told(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Told:
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
            return _Told(op, group.name, pipe, peer, tag, "")

        return told

    def _new_group(self, call: Callable[..., Any]) -> Callable[..., Any]:
        places = _places(call)
        asked_of = _picker(places, "ranks")
        local_of = _picker(places, "use_local_synchronization")

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            asked = asked_of(args, kwargs)
            ranks = list(range(dist.get_world_size()) if asked is None else asked)
            if local_of(args, kwargs):
                makers = f"new group of {ranks}"  # only its members take part
                self._add(Group, makers, ranks)
            else:
                makers = self._group(None).name
            caller, site = self._called_from(sys._getframe(1))
            operation = Operation("new_group", makers, -1, -1, "", "", len(ranks), caller, (), site)
            self.enter(self._recorder.known(operation), next(self._channel(makers)), ranks)
            made = self.call(call, args, kwargs, "new_group")
            self.leave(ranks)
            if isinstance(made, dist.ProcessGroup):
                self._group(made)
            return made

        return recorded

    def _site(
        self,
        told: "_Told",
        tensor: Any,
        path: Path,
        rest: tuple[Any, ...],
        options: dict[str, Any],
    ) -> "_Site":
        dtype, numel, shape, is_cpu = None, 0, torch.Size(), False
        if isinstance(tensor, _Tensor):
            numel = tensor.numel()
            dtype, shape, is_cpu = tensor.dtype, tensor.shape, tensor.is_cpu
        caller, line = self._callers.told(path)
        op, group, channel, peer, tag, reduce_op = told
        operation = Operation(
            op=op,
            group=group,
            peer=peer,
            tag=tag,
            reduce_op=reduce_op,
            dtype="" if dtype is None else str(dtype).removeprefix("torch."),
            numel=numel,
            caller=caller,
            shape=shape if len(shape) > 1 else (),
            site=line,
        )
        # Reading one from a GPU would synchronise the stream.
        readable = dtype in _WHOLE and numel <= VALUES_KEPT and is_cpu
        before = _reader(tensor) if readable else _unread
        return _Site(
            rest=rest,
            options=options,
            dtype=dtype,
            shape=shape,
            is_cpu=is_cpu,
            operation=operation,
            known=self._recorder.known(operation),
            ordinals=self._channel(channel),
            before=before,
            after=before if readable and op not in _SEND else None,
            receives=op in _RECEIVE and not (op == "broadcast" and peer == self._rank),
        )

    def call(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], op: str
    ) -> Any:
        """``call(*args, **kwargs)``, unseen inside; an exception is noted as out of ``op``."""
        self._inside = True
        try:
            return call(*args, **kwargs)
        except BaseException as error:  # noted for the crash report, and raised on
            self._failed = (error, op)
            raise
        finally:
            self._inside = False

    def touched(self, site: "_Site", ordinal: int, how: str) -> None:
        """Record that the buffer of an operation was used before its wait. how: as in Touched."""
        op, group, peer, tag = site.operation[:4]
        at = self._called_from(sys._getframe(1))
        self._add(Touched, how, op, group, ordinal, peer, tag, *at)

    def wait_of(self, site: "_Site", frame: FrameType) -> "_Site":
        """What a wait of such an operation has in common with others from that place."""
        path = self._callers.path(frame)
        wait = site.waits.get(path)
        if wait is None:
            awaited = site.operation
            caller, line = self._callers.told(path)
            op = "wait" if awaited.op in _SEND else f"wait_{awaited.op}"
            operation = awaited._replace(op=op, caller=caller, site=line)
            known = self._recorder.known(operation)
            wait = replace(site, operation=operation, known=known, waits={})
            site.waits[path] = wait
        return wait

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

    def _channel(self, channel: Any) -> Iterator[int]:
        """The ordinals that are still to come there."""
        return self._ordinals.setdefault(channel, count())

    def _called_from(self, frame: FrameType) -> tuple[str, str]:
        return self._callers.told(self._callers.path(frame))


class _Told(NamedTuple):
    """What a call's arguments tell of its operation. channel: what its ordinals are counted in."""

    op: str
    group: str
    channel: Any
    peer: int
    tag: int
    reduce_op: str


_Teller = Callable[[tuple[Any, ...], dict[str, Any]], _Told]


@dataclass(frozen=True, eq=False, slots=True)
class _Site:
    """What calls from one place have in common whose arguments are equal but for the first tensor.

    rest, options: those other arguments. dtype, shape, is_cpu: of the tensor. known: the operation
    in the recorder's own form. ordinals: those to come in its channel. before, after: what reads
    the tensor's values before and after the call; no ``after`` where they stay what they were.
    receives: the tensor is written into until the operation is over. waits: of such an operation,
    by the path that leads there.
    """

    rest: tuple[Any, ...]
    options: dict[str, Any]
    dtype: torch.dtype | None
    shape: Sequence[int]
    is_cpu: bool
    operation: Operation
    known: Any
    ordinals: Iterator[int]
    before: Callable[[Any], list[int]]
    after: Callable[[Any], list[int]] | None
    receives: bool
    waits: "dict[Path, _Site]" = field(default_factory=dict)


class RecordedWork:
    """A Work whose ``wait`` is recorded; everything else goes to torch's own.

    The buffer counts as the operation's until the work is waited for, or asked anything else that
    may tell that it is complete.
    """

    __slots__ = ("_guard", "_ordinal", "_shim", "_site", "_tensor", "_work", "_writes")

    def __init__(self, shim: Shim, work: Any, site: _Site, ordinal: int, tensor: Any) -> None:
        self._shim = shim
        self._work = work
        self._site = site
        self._ordinal = ordinal
        self._tensor = tensor
        self._writes = writes(tensor)
        self._guard: Guard | None = None
        if site.receives:
            self._guard = Guard(tensor, lambda how: shim.touched(site, ordinal, how))

    def wait(self, *args: Any) -> Any:
        """torch's ``wait``, recorded with this Work's channel and ordinal."""
        self._release()
        shim, tensor = self._shim, self._tensor
        wait = shim.wait_of(self._site, sys._getframe(1))
        values = wait.before(tensor)
        shim.enter(wait.known, self._ordinal, values)
        result = shim.call(self._work.wait, args, {}, f"wait of {self._site.operation.op}")
        shim.leave(wait.after(tensor) if wait.after else values)
        return result

    def is_completed(self) -> bool:
        """torch's ``is_completed``."""
        completed: bool = self._work.is_completed()
        if completed:
            self._release()
        return completed

    def __getattr__(self, name: str) -> Any:
        self._release()
        return getattr(self._work, name)

    def _release(self) -> None:
        """The buffer is its owner's again; writes into it are told, once."""
        if self._guard is not None:
            self._guard.release()
        elif self._writes != writes(self._tensor):
            self._writes = writes(self._tensor)
            self._shim.touched(self._site, self._ordinal, "written")


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


def _reader(tensor: torch.Tensor) -> Callable[[Any], list[int]]:
    """What lists the elements of a tensor like this one, of whole numbers, one after the other."""
    if tensor.dtype is torch.bool:
        return lambda tensor: list(map(int, tensor.flatten().tolist()))
    if tensor.dim() == 1:
        return _Tensor.tolist
    return lambda tensor: tensor.flatten().tolist()


def _unread(tensor: Any) -> list[int]:
    return []
