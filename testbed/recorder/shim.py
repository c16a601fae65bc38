"""The layer under ``torch.distributed``: every operation is recorded, none is changed.

Where all ways to an operation meet is the process group: ``install`` gives recording methods to the
classes ``ProcessGroup`` and ``Work``, so that an operation is seen by whatever name, imported
whenever, the program reaches it. The public functions are replaced too, for what only they know:
that a ``send`` blocks, what a collective of objects is, the root as a global rank; the group's
methods that they call count as part of them. Operations that C++ code starts by itself, as DDP's
reducer and functional collectives do, are seen at torch's dispatcher (``native``).

A process is a disposable rank, so nothing is put back. What is recorded of an operation: see
``events.Enter``. The calls go on to torch with the arguments untouched, and torch's own Work comes
back; its buffers are watched until it is waited for (``guard``).
"""

import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import c10d_logger, distributed_c10d

from testbed.model.events import Dropped, Group, Operation, Settled, Touched
from testbed.model.topology import GroupSpec, has_tags
from testbed.recorder.arguments import SHORT, Asked, Reader, of_method, of_public
from testbed.recorder.callers import Callers, Path
from testbed.recorder.guard import Awaited, Guard, tensors_in
from testbed.recorder.native import Native
from testbed.recorder.operations import CALLED_BY_TORCH, FORMS, NEW_GROUP, SPLIT_GROUP, Form
from testbed.recorder.ownership import Owner, of_frame
from testbed.recorder.recorder import OperationRecorder
from testbed.recorder.works import Pending, Works

VALUES_KEPT = 16
_WHOLE = frozenset(
    {torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool}
    | {torch.uint16, torch.uint32, torch.uint64}
)
_NAME_KEPT = 6

# Operations whose calls are remembered by where they come from and all but their tensor.
_REMEMBERED = frozenset({"all_reduce", "reduce", "broadcast", "send", "recv", "isend", "irecv"})
_SITES_KEPT = 64
# Files of torch's public functions, which pass a Work on to their caller.
_BETWEEN = frozenset({distributed_c10d.__file__, c10d_logger.__file__, contextlib.__file__})

# Groups whose operations are being collected, to be made as one (torch's coalescing manager).
_put_together = distributed_c10d._world.pg_coalesce_state

# Of torch's own functions, whatever may lie around them when a rank is recorded.
_SIGNATURES = {
    name: inspect.signature(call)
    for form in FORMS
    for name in form.public
    if (call := getattr(dist, name, None)) is not None
}

_Tensor, _Work, _ProcessGroup = torch.Tensor, dist.Work, dist.ProcessGroup

Functions = dict[tuple[Any, str], Any]
"""Owner (a module or a class) and name -> the function there."""


class _Known(NamedTuple):
    """A process group that was seen. timed: it gives up by itself before long."""

    spec: GroupSpec
    timed: bool


class _Here(threading.local):
    """What this layer knows of the calling thread. inside: it is in a recorded operation, whose
    parts are not recorded.
    """

    inside = False


class Shim:
    """Records the torch.distributed operations of one rank.

    groups: process group -> its name and global ranks; ``None`` stands for the default group. Any
    other group is learnt when it is first used.

    What can be known of a call before it is made is worked out at its first time in one place and
    remembered (``_Site``): between two ranks that wait for each other every microsecond counts, and
    after each wait the processor's caches are cold.
    """

    def __init__(
        self, recorder: OperationRecorder, rank: int, groups: Mapping[Any, GroupSpec]
    ) -> None:
        self._recorder = recorder
        self._add, self._enter, self._exit = recorder.add, recorder.enter, recorder.exit
        self._rank = rank
        self._groups: dict[int, _Known] = {
            id(group): _Known(spec, False) for group, spec in groups.items()
        }
        self._given = tuple(groups)  # kept alive: an id belongs to nobody else then
        self._default_is_known = None in groups
        self._worlds = 0
        self._ordinals: dict[Any, Iterator[int]] = {}
        self._callers = Callers()
        self._failed: tuple[BaseException, str] | None = None
        self._sites: list[dict[Path, list[_Site]]] = []
        self.here = _Here()
        self._works = Works(self._dropped)
        self._native = Native(self)

    def install(self, inside: Sequence[Callable[[str], None]] = ()) -> None:
        """Put the recording functions in place of torch's, in this process, for good.

        inside: called with the name of each operation once it is entered, before torch has it: what
        a rank does that dies in the middle of one.
        """
        for (owner, name), function in self.replacements(inside).items():
            setattr(owner, name, function)
        self._native.watch()

    def replacements(self, inside: Sequence[Callable[[str], None]] = ()) -> "Functions":
        """What ``install`` puts in place, made of what is in place now."""
        made: Functions = {}
        for form in FORMS:
            for name in form.methods:
                method = _through(inside, form.op, getattr(_ProcessGroup, name))
                read = of_method(form, self.ranks_of)
                made[_ProcessGroup, name] = self._recorded(form, method, read, _method_rest(form))
            for name in form.public:
                call = getattr(dist, name, None)
                if call is None:  # torch of another version
                    continue
                read = of_public(form, _SIGNATURES[name], self.ranks_of)
                function = self._recorded(form, _through(inside, form.op, call), read, _public_rest)
                made[dist, name] = function
                if name in CALLED_BY_TORCH:
                    made[distributed_c10d, name] = function
        for name in ("wait", "synchronize"):
            made[_Work, name] = self._waits(getattr(_Work, name))
        for name, how in (("get_future", "future"), ("result", "polled")):
            made[_Work, name] = self._settles(getattr(_Work, name), how)
        made[_Work, "is_completed"] = self._asks(_Work.is_completed)
        for owner, name, around in (
            (distributed_c10d, "_new_group_with_tag", self._makes_group),
            (_ProcessGroup, "split_group", self._splits),
            (_ProcessGroup, "shutdown", self._forgets),
        ):
            made[owner, name] = around(getattr(owner, name))
        return made

    def failed_op(self, error: BaseException) -> str:
        """The operation out of which ``error`` came, "" if it came out of none."""
        seen: BaseException | None = error
        while seen is not None:
            if self._failed is not None and seen is self._failed[0]:
                return self._failed[1]
            seen = seen.__cause__ or seen.__context__
        return ""

    def _recorded(
        self, form: Form, call: Callable[..., Any], read: Reader, rest_of: "_RestOf"
    ) -> Callable[..., Any]:
        op = form.op
        path_of, enter, leave, track = (
            self._callers.path,
            self._enter,
            self._exit,
            self._works.track,
        )
        sites: dict[Path, list[_Site]] = {}
        self._sites.append(sites)
        remembered, receives = op in _REMEMBERED, form.way == "receive"
        here = self.here

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if here.inside:  # torch's recv calls the group's
                return call(*args, **kwargs)
            path = path_of(sys._getframe(1))
            tensor, rest = rest_of(args) if remembered else (None, ())
            # What is being put together for later is not made now, wherever it is called from.
            if type(tensor) is _Tensor and not _put_together:
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
                    asked = read(args, kwargs)
                    if self._is_left_out(asked.group):
                        return call(*args, **kwargs)
                    site = self._site(
                        form, asked, tensor, path, rest, kwargs, _is_programs(sys._getframe(1))
                    )
                    sites[path] = [*sites.get(path, ())[1 - _SITES_KEPT :], site]
                before, after = site.before, site.after
                written, sent = ([tensor], []) if site.receives else ([], [tensor])
            else:
                asked = read(args, kwargs)
                if self._is_left_out(asked.group):
                    return call(*args, **kwargs)
                sized = list(tensors_in(asked.tensors.get(form.sized_by)))
                tensor = sized[0] if len(sized) == 1 else None
                site = self._site(
                    form, asked, sized, path, (), kwargs, _is_programs(sys._getframe(1))
                )
                before, after = site.before, site.after
                written, sent = self._buffers(form, asked, site)
                for buffers, how in ((written, "written"), (sent, "read")):
                    for buffer in buffers:
                        if isinstance(buffer, Awaited):
                            buffer.guard.touch(how)
                            before, after = _unread, None
            ordinal = next(site.ordinals)
            values = before(tensor)
            enter(site.known, ordinal, values)
            # As ``self.call`` does it; here and in a wait its own frame would be paid each time.
            here.inside = True
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # noted for the crash report, and raised on
                self._note(error, op)
                raise
            finally:
                here.inside = False
            if after is not None:
                values = after(tensor)
            if result is None:
                leave(values)
            elif isinstance(result, _Work):
                leave(values, site.handed)
                touched = partial(self.touched, site, ordinal)
                track(result, Pending(site, ordinal, tensor, Guard(written, sent, touched)))
            elif receives and site.operation.peer < 0:
                leave(values, False, result)  # from whom it came
            else:
                leave(values)
            return result

        return recorded

    def started(self, form: Form, asked: Asked, call: Callable[[], Any]) -> tuple[Any, Pending]:
        """Record an operation that C++ code starts: what ``call`` returned, and the operation,
        which nobody in Python will wait for by its Work.
        """
        sized = list(tensors_in(asked.tensors.get(form.sized_by)))
        tensor = sized[0] if len(sized) == 1 else None
        path = self._callers.path(sys._getframe(2))
        site = self._site(form, asked, sized, path, (), {})
        ordinal = next(site.ordinals)
        values = site.before(tensor)
        self._enter(site.known, ordinal, values)
        result = self.call(call, (), {}, form.op)
        self._exit(values)
        guard = Guard((), (), _not_watched)
        return result, Pending(site, ordinal, tensor, guard)

    def awaited(self, pending: Pending, call: Callable[[], Any]) -> Any:
        """Record that C++ code waits for such an operation: what ``call`` returned."""
        site = self.wait_of(pending.site, sys._getframe(2))
        values = site.before(pending.tensor)
        self._enter(site.known, pending.ordinal, values)
        result = self.call(call, (), {}, f"wait of {pending.site.operation.op}")
        self._exit(site.after(pending.tensor) if site.after else values)
        return result

    def _is_left_out(self, group: Any) -> bool:
        """Whether this rank takes no part: torch then warns, or says what is wrong, and returns.
        What is put together for later is recorded when it is done.
        """
        if group is None:
            if not dist.is_initialized():
                return True
            group = dist.group.WORLD
        return not isinstance(group, _ProcessGroup) or group in _put_together

    def _dropped(self, pending: Pending) -> None:
        pending.guard.forget()
        if not pending.site.handed:
            return
        op, group, peer, tag = pending.site.operation[:4]
        self._recorder.later(Dropped, op, group, pending.ordinal, peer, tag)

    def _buffers(
        self, form: Form, asked: Asked, site: "_Site"
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors that the operation writes into, and those that it reads."""
        written = [one for name in form.writes for one in tensors_in(asked.tensors.get(name))]
        read = [one for name in form.reads for one in tensors_in(asked.tensors.get(name))]
        return ([], written + read) if written and not site.receives else (written, read)

    def _waits(self, call: Callable[..., Any]) -> Callable[..., Any]:
        here, find, settle = self.here, self._works.find, self._works.settle
        enter, leave = self._enter, self._exit

        def recorded(work: Any, *args: Any, **kwargs: Any) -> Any:
            pending = None if here.inside else find(work)
            if pending is None:
                return call(work, *args, **kwargs)
            site, ordinal, tensor, guard = pending
            guard.release()
            wait = self.wait_of(site, sys._getframe(1), _is_timed(args, kwargs))
            values = wait.before(tensor)
            enter(wait.known, ordinal, values)
            here.inside = True
            try:
                result = call(work, *args, **kwargs)
            except BaseException as error:  # noted for the crash report, and raised on
                self._note(error, f"wait of {site.operation.op}")
                raise
            finally:
                here.inside = False
            settle(work)
            if wait.after is not None:
                values = wait.after(tensor)
            leave(values, False, self._source(work, site))
            return result

        return recorded

    def _source(self, work: Any, site: "_Site") -> int:
        """Global rank of the sender, where the operation took a message from anybody."""
        if site.operation.peer >= 0 or site.operation.tag < 0:
            return -1
        within = int(work._source_rank())
        return site.ranks[within] if 0 <= within < len(site.ranks) else -1

    def _settles(self, call: Callable[..., Any], how: str) -> Callable[..., Any]:
        def recorded(work: Any, *args: Any, **kwargs: Any) -> Any:
            self._settle(work, how)
            return call(work, *args, **kwargs)

        return recorded

    def _asks(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(work: Any) -> Any:
            completed = call(work)
            if completed:
                self._settle(work, "polled")
            return completed

        return recorded

    def _settle(self, work: Any, how: str) -> None:
        """The program learns otherwise than by a wait that the operation is over."""
        pending = None if self.here.inside else self._works.find(work)
        if pending is not None:
            pending.guard.release()
            self._works.settle(work)
            op, group, peer, tag = pending.site.operation[:4]
            self._add(Settled, how, op, group, pending.ordinal, peer, tag)

    def _makes_group(self, call: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(call)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self.here.inside or not dist.is_initialized():
                return call(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            asked = given.get("ranks")
            ranks = list(range(dist.get_world_size()) if asked is None else asked)
            if given.get("use_local_synchronization"):
                makers = f"new group of {ranks}"  # only its members take part
                self._add(Group, makers, ranks)
            else:
                makers = self._group(None).spec.name
            return self._made(NEW_GROUP, makers, ranks, call, args, kwargs)

        return recorded

    def _splits(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(group: Any, *args: Any, **kwargs: Any) -> Any:
            if self.here.inside:
                return call(group, *args, **kwargs)
            makers = self._group(group).spec.name
            return self._made(SPLIT_GROUP, makers, [], call, (group, *args), kwargs)

        return recorded

    def _made(
        self,
        op: str,
        makers: str,
        ranks: list[int],
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        caller, site = self._called_from(sys._getframe(2))
        operation = Operation(op, makers, -1, -1, "", "", len(ranks), caller, (), site)
        self._enter(self._recorder.known(operation), next(self._channel(makers)), ranks)
        made = self.call(call, args, kwargs, op)
        self._exit(ranks)
        if isinstance(made, _ProcessGroup):
            self._group(made)
        return made

    def _forgets(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(group: Any, *args: Any, **kwargs: Any) -> Any:
            # What is remembered of calls would keep the group, and its connections, alive.
            for sites in self._sites:
                sites.clear()
            return call(group, *args, **kwargs)

        return recorded

    def _site(
        self,
        form: Form,
        asked: Asked,
        sized: Any,
        path: Path,
        rest: tuple[Any, ...],
        options: dict[str, Any],
        handed: bool = False,
    ) -> "_Site":
        """sized: the tensor, or tensors, whose dtype and size are recorded. handed: see _Site."""
        tensors: list[torch.Tensor] = [sized] if isinstance(sized, _Tensor) else sized
        first = tensors[0] if tensors else None
        alone = first if len(tensors) == 1 else None
        numel = sum(tensor.numel() for tensor in tensors)
        dtype = None if first is None else first.dtype
        shape = torch.Size() if alone is None else alone.shape
        is_cpu = alone is not None and alone.is_cpu
        group = self._group(asked.group)
        caller, line = self._callers.told(path)
        operation = Operation(
            op=form.op,
            group=group.spec.name,
            peer=asked.root,
            tag=asked.tag,
            reduce_op=asked.reduce_op,
            dtype="" if dtype is None else str(dtype).removeprefix("torch."),
            numel=numel,
            caller=caller,
            shape=asked.sizes[0] or (shape if len(shape) > 1 else ()),
            site=line,
            timed=asked.timed or group.timed,
        )
        # Reading one from a GPU would synchronise the stream.
        readable = alone is not None and dtype in _WHOLE and numel <= VALUES_KEPT and is_cpu
        before = _reader(alone) if readable and alone is not None else _unread
        if form.splits:
            comes = list(asked.sizes[1])
            readable, before = False, lambda _: comes
        elif type(alone) not in (_Tensor, Awaited):
            before, readable = _unread, False
        return _Site(
            rest=rest,
            options=options,
            dtype=dtype,
            shape=shape,
            is_cpu=is_cpu,
            operation=operation,
            known=self._recorder.known(operation),
            ordinals=self._channel(self._channel_of(form, operation)),
            ranks=group.spec.ranks,
            before=before,
            after=before if readable and form.way != "send" else None,
            handed=handed,
            receives=bool(form.writes)
            and not (form.op == "broadcast" and asked.root == self._rank),
        )

    def _channel_of(self, form: Form, operation: Operation) -> Any:
        """What its ordinals are counted in: the group, or the pipe of a message."""
        group, peer = operation.group, operation.peer
        if not form.way:
            return group
        lane = operation.tag if has_tags(group) else 0
        ends = (self._rank, peer) if form.way == "send" else (peer, self._rank)
        return (group, *ends, lane)

    def call(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], op: str
    ) -> Any:
        """``call(*args, **kwargs)``, unseen inside; an exception is noted as out of ``op``."""
        here = self.here
        here.inside = True
        try:
            return call(*args, **kwargs)
        except BaseException as error:  # noted for the crash report, and raised on
            self._note(error, op)
            raise
        finally:
            here.inside = False

    def _note(self, error: BaseException, op: str) -> None:
        self._failed = (error, op)
        self._recorder.left(type(error).__name__)

    def touched(self, site: "_Site", ordinal: int, how: str) -> None:
        """Record that the buffer of an operation was used before its wait. how: as in Touched."""
        op, group, peer, tag = site.operation[:4]
        at = self._called_from(sys._getframe(1))
        self._add(Touched, how, op, group, ordinal, peer, tag, *at)

    def wait_of(self, site: "_Site", frame: FrameType, timed: bool = False) -> "_Site":
        """What a wait of such an operation has in common with others from that place."""
        path = self._callers.path(frame)
        wait = site.waits.get((path, timed))
        if wait is None:
            awaited = site.operation
            caller, line = self._callers.told(path)
            op = "wait" if awaited.op in ("send", "isend") else f"wait_{awaited.op}"
            operation = awaited._replace(
                op=op, caller=caller, site=line, timed=timed or awaited.timed
            )
            known = self._recorder.known(operation)
            wait = replace(site, operation=operation, known=known, waits={})
            site.waits[path, timed] = wait
        return wait

    def ranks_of(self, group: Any) -> tuple[int, ...]:
        """Global ranks of a group, in the order of its members; none where it is no group."""
        if group is None or isinstance(group, _ProcessGroup):
            return self._group(group).spec.ranks if dist.is_initialized() else ()
        return ()

    def _group(self, group: Any) -> _Known:
        known = self._groups.get(id(group))
        if known is not None:
            return known
        if group is None:
            return self._group(dist.group.WORLD)
        if group is dist.group.WORLD and self._default_is_known:
            return self._groups[id(None)]
        ranks = _members(group)
        if group is dist.group.WORLD:
            self._worlds += 1
            name = "world" if self._worlds == 1 else f"world#{self._worlds}"
        else:
            # torch's own name tells two groups of the same members apart, and is the same for all.
            name = f"group{group.group_name[:_NAME_KEPT]}{list(ranks)}"
        spec = GroupSpec(name, ranks)
        timed = False
        backend = dist.get_backend(group) if group in distributed_c10d._world.pg_map else ""
        if backend == dist.Backend.NCCL:
            spec = spec.on_nccl()
        elif backend == dist.Backend.GLOO:
            timed = group._get_backend(torch.device("cpu")).options._timeout < SHORT
        known = _Known(spec, timed)
        self._groups[id(group)] = known
        weakref.finalize(group, self._groups.pop, id(group), None).atexit = False
        self._add(Group, spec.name, list(ranks))
        return known

    def _channel(self, channel: Any) -> Iterator[int]:
        """The ordinals that are still to come there."""
        return self._ordinals.setdefault(channel, count())

    def _called_from(self, frame: FrameType) -> tuple[str, str]:
        return self._callers.told(self._callers.path(frame))


@dataclass(frozen=True, eq=False, slots=True)
class _Site:
    """What calls from one place have in common whose arguments are equal but for the first tensor.

    rest, options: those other arguments. dtype, shape, is_cpu: of the tensor. known: the operation
    in the recorder's own form. ordinals: those to come in its channel. ranks: its group's. before,
    after: what reads the tensor's values before and after the call; no ``after`` where they stay
    what they were. receives: its results are written into until the operation is over. handed: a
    Work goes to code that has to wait for it; torch's own libraries know what they throw away.
    waits: of such an operation, by the path that leads there.
    """

    rest: tuple[Any, ...]
    options: dict[str, Any]
    dtype: torch.dtype | None
    shape: Sequence[int]
    is_cpu: bool
    operation: Operation
    known: Any
    ordinals: Iterator[int]
    ranks: tuple[int, ...]
    before: Callable[[Any], list[int]]
    after: Callable[[Any], list[int]] | None
    receives: bool
    handed: bool
    waits: "dict[tuple[Path, bool], _Site]" = field(default_factory=dict)


_RestOf = Callable[[tuple[Any, ...]], tuple[Any, tuple[Any, ...]]]


def _public_rest(args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The tensor that a public function is given first, and its other arguments."""
    return (args[0], args[1:]) if args else (None, ())


def _method_rest(form: Form) -> _RestOf:
    """The like of a method, where its other arguments can be compared: of messages."""

    def rest_of(args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        if len(args) > 1 and type(args[1]) is list and len(args[1]) == 1:
            return args[1][0], (id(args[0]), *args[2:])
        return None, ()

    return rest_of if form.way else lambda args: (None, ())


def _is_programs(frame: FrameType | None) -> bool:
    """Whether the code that called torch's function is not one of torch's own libraries."""
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    return frame is None or of_frame(frame) is not Owner.TORCH


def _is_timed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a wait has a time limit of its own."""
    limit = args[0] if args else kwargs.get("timeout")
    return isinstance(limit, timedelta) and limit > timedelta(0)


def _members(group: Any) -> tuple[int, ...]:
    """Global ranks of a process group; of one that torch does not keep a list of, its own ranks."""
    if group in distributed_c10d._world.pg_group_ranks:
        return tuple(dist.get_process_group_ranks(group))
    return tuple(range(group.size()))


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


def _reader(tensor: torch.Tensor) -> Callable[[Any], list[int]]:
    """What lists the elements of a tensor like this one, of whole numbers, one after the other."""
    if tensor.dtype is torch.bool:
        return lambda tensor: list(map(int, tensor.flatten().tolist()))
    if tensor.dim() == 1:
        return _Tensor.tolist
    return lambda tensor: tensor.flatten().tolist()


def _unread(tensor: Any) -> list[int]:
    return []


def _not_watched(how: str) -> None:
    """C++ code's buffers are its own."""
