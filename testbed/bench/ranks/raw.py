"""The bare operations of a step: what a subject was seen to do, with nothing around it.

Made from the recording of one step between others: its waits are for what the step before it began,
and what it begins itself is waited for in a later one. Buffers are made once and hold zeros.
Whatever protocol or release the subject is, its own operations are the yardstick.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from testbed.model.events import Enter, Event

# torch's own, whatever layer is put over them later.
_BARE = {name: getattr(dist, name) for name in ("all_reduce", "send", "isend", "recv", "irecv")}
_ENDS = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}

Work = Any
Call = Callable[[], None]


class Raw:
    """One rank's bare step. after: what was recorded after it. groups: by the recording's names.
    device: where their tensors must be.

    Raises ValueError for an operation that it does not know.
    """

    def __init__(
        self,
        step: Sequence[Event],
        after: Iterable[Event],
        groups: Mapping[str, Any],
        device: torch.device,
    ) -> None:
        self._device = device
        entered = [event for event in step if isinstance(event, Enter)]
        awaited = {
            (*_pipe(event), event.ordinal)
            for event in (*entered, *after)
            if isinstance(event, Enter) and _is_wait(event)
        }
        self._works: dict[tuple[Any, ...], deque[Work]] = {}
        self._calls = [self._call(event, groups, _is_async(event, awaited)) for event in entered]

    def step(self) -> None:
        """All operations of one step, in order."""
        for call in self._calls:
            call()

    def drain(self) -> None:
        """Wait for whatever the last step left."""
        for works in self._works.values():
            while works:
                works.popleft().wait()

    def _call(self, event: Enter, groups: Mapping[str, Any], later: bool) -> Call:
        works = self._works.setdefault(_pipe(event), deque())
        if _is_wait(event):

            def wait() -> None:
                if works:  # not in the very first step
                    works.popleft().wait()

            return wait
        if event.op not in _BARE:
            raise ValueError(f"{event.op} of {event.group}: the bare loop knows {', '.join(_BARE)}")
        bound: dict[str, Any] = {"group": groups[event.group]}
        if event.op == "all_reduce":
            bound["op"] = getattr(dist.ReduceOp, event.reduce_op)
            bound["async_op"] = later
        else:
            bound |= {_ENDS[event.op]: event.peer, "tag": event.tag}
        function, tensor = _BARE[event.op], self._zeros(event)
        if not later:
            return lambda: function(tensor, **bound)
        return lambda: works.append(function(tensor, **bound))

    def _zeros(self, event: Enter) -> torch.Tensor:
        return torch.zeros(event.numel, dtype=dtype_of(event), device=self._device)


def dtype_of(event: Enter) -> torch.dtype:
    """The dtype that a recording names."""
    dtype: torch.dtype = getattr(torch, event.dtype)
    return dtype


def _is_wait(event: Enter) -> bool:
    return event.op.startswith("wait")


def _is_async(event: Enter, awaited: set[tuple[Any, ...]]) -> bool:
    return (*_pipe(event), event.ordinal) in awaited


def _pipe(event: Enter) -> tuple[Any, ...]:
    """The channel of an operation, the same for it and for its wait."""
    kind = "isend" if event.op == "wait" else event.op.removeprefix("wait_")
    return (kind, event.group, event.peer, event.tag)
