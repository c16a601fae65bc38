"""A run as a trace that ui.perfetto.dev and chrome://tracing open: Chrome's trace-event format.

A process is a rank, a thread one of its groups; beside them its steps, and its waits for events and
local queues. An operation is a slice; a message an arrow from the slice that sent it to the one
that received it; a transfer an asynchronous slice from its enqueueing to its completion; faults and
exceptions are instants. What never came back lasts to the end of the trace and says so.
"""

import gzip
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from testbed.analysis.view import Op, Pipe, RankView, View
from testbed.model.events import (
    About,
    Begin,
    Block,
    Complete,
    End,
    Enter,
    Event,
    Exit,
    Fired,
    Raised,
    Start,
    Sync,
    Synced,
    Take,
)
from testbed.model.record import RunRecord
from testbed.model.topology import told_tag

TRACE_FILE = "trace.json.gz"

_STEPS, _WAITS, _FIRST_GROUP = 0, 1, 2
TraceEvent = dict[str, Any]


def write_trace(record: RunRecord, folder: Path) -> Path:
    """Write the trace of a run into ``folder``, compressed: both viewers read it as it is. Raises
    OSError.
    """
    path = folder / TRACE_FILE
    path.write_bytes(gzip.compress(msgspec.json.encode(trace(record)), 6, mtime=0))
    return path


def trace(record: RunRecord) -> dict[str, Any]:
    """The whole trace as plain JSON values; times are microseconds on the clock of the machine,
    counted from the first rank's start.
    """
    view = View(record)
    births = _births(view)
    end_us = max(
        (births[rank.rank] + event.t_us for rank in view.ranks.values() for event in _last(rank)),
        default=0,
    )
    tracks = [_Track(view, rank, births[rank.rank], end_us) for rank in view.ranks.values()]
    events = [event for track in tracks for event in track.events()]
    events += _arrows(tracks)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "case": record.scenario.case_id,
            "ended": record.ended,
            **{f"version of {name}": version for name, version in record.versions.items()},
        },
    }


def _last(rank: RankView) -> tuple[Event, ...]:
    return rank.record.events[-1:]


def _births(view: View) -> dict[int, int]:
    """Rank -> microseconds after the first rank's start; 0 where a record does not tell."""
    born = {
        rank.rank: event.born_us
        for rank in view.ranks.values()
        for event in rank.record.events
        if isinstance(event, About)
    }
    first = min((at for at in born.values() if at), default=0)
    return {rank: max(0, born.get(rank, 0) - first) for rank in view.ranks}


class _Track:
    """The events of one rank."""

    def __init__(self, view: View, rank: RankView, born_us: int, end_us: int) -> None:
        self._view, self._rank = view, rank
        self._born_us, self._end_us = born_us, end_us
        groups = dict.fromkeys(op.enter.group for op in rank.ops)
        self._threads = {group: _FIRST_GROUP + place for place, group in enumerate(groups)}
        self.messages: dict[tuple[Pipe, int], tuple[bool, TraceEvent]] = {}

    def events(self) -> Iterator[TraceEvent]:
        """Metadata, then everything in the order of the record."""
        yield from self._names()
        yield from self._steps()
        yield from self._slices()
        for event in self._rank.record.events:
            yield from self._moments(event)

    def _names(self) -> Iterator[TraceEvent]:
        at = self._view.topology.coords(self._rank.rank)
        name = f"rank {self._rank.rank} (pp{at.pp} tp{at.tp} cp{at.cp})"
        yield self._about("process_name", 0, name=name)
        yield self._about("process_sort_index", 0, sort_index=self._rank.rank)
        for name, thread in {"steps": _STEPS, "waits": _WAITS, **self._threads}.items():
            yield self._about("thread_name", thread, name=name)
            yield self._about("thread_sort_index", thread, sort_index=thread)

    def _about(self, what: str, thread: int, **args: Any) -> TraceEvent:
        return {"ph": "M", "name": what, "pid": self._rank.rank, "tid": thread, "args": args}

    def _steps(self) -> Iterator[TraceEvent]:
        begun: Begin | None = None
        for event in self._rank.record.events:
            if isinstance(event, Begin):
                begun = event
            elif isinstance(event, End) and begun is not None:
                yield self._slice(f"step {event.step}", "step", _STEPS, begun.t_us, event.t_us)
                begun = None
        if begun is not None:
            yield self._slice(f"step {begun.step}", "step", _STEPS, begun.t_us, None)

    def _slices(self) -> Iterator[TraceEvent]:
        """What took time. Entered and left like brackets; what an exception left has no end of its
        own and ends with what it lay in.
        """
        ops = iter(self._rank.ops)
        open_: list[tuple[Op | Sync | Block, int]] = []
        for event in self._rank.record.events:
            if isinstance(event, Enter):
                open_.append((next(ops), event.t_us))
            elif isinstance(event, Sync | Block):
                open_.append((event, event.t_us))
            elif isinstance(event, Exit | Synced | Take | Raised) and open_:
                wanted = {Exit: Op, Synced: Sync, Take: Block}.get(type(event), object)
                yield from self._closed(open_, wanted, event.t_us)
        for what, since in open_:
            yield self._of(what, since, None)

    def _closed(
        self, open_: list[tuple[Op | Sync | Block, int]], wanted: type, now: int
    ) -> Iterator[TraceEvent]:
        if wanted is not object and not any(isinstance(what, wanted) for what, _ in open_):
            return
        while open_:
            what, since = open_.pop()
            yield self._of(what, since, now)
            if isinstance(what, wanted) and wanted is not object:
                return

    def _of(self, what: Op | Sync | Block, since: int, until: int | None) -> TraceEvent:
        if isinstance(what, Sync):
            name = f"synchronize {what.key}"
            return self._slice(name, "event", _WAITS, since, until, stall_steps=what.stall)
        if isinstance(what, Block):
            return self._slice(f"get from {what.queue}", "queue", _WAITS, since, until)
        enter = what.enter
        made = self._slice(
            f"{enter.op} #{enter.ordinal}",
            "model" if what.is_model else "wait" if what.is_wait else "op",
            self._threads[enter.group],
            since,
            until,
            **_details(what),
        )
        if what.is_send or what.is_recv:
            self.messages[what.pipe, enter.ordinal] = (what.is_send, made)
        return made

    def _slice(
        self, name: str, kind: str, thread: int, since: int, until: int | None, **args: Any
    ) -> TraceEvent:
        begin = self._born_us + since
        if until is None:
            args["never came back"] = True
        end = self._end_us if until is None else self._born_us + until
        return {
            "ph": "X",
            "name": name,
            "cat": kind,
            "pid": self._rank.rank,
            "tid": thread,
            "ts": begin,
            "dur": max(0, end - begin),
            "args": args,
        }

    def _moments(self, event: Event) -> Iterator[TraceEvent]:
        if isinstance(event, Fired):
            yield self._instant(f"fault: {event.kind}", event, "fault", detail=event.detail)
        elif isinstance(event, Raised):
            yield self._instant(event.type, event, "exception", message=event.message)
        elif isinstance(event, Start):
            yield self._transfer("b", event.queue, event.key, event, ready=event.ready)
        elif isinstance(event, Complete):
            yield self._transfer("e", event.queue, event.key, event, ready=event.ready)

    def _instant(self, name: str, event: Event, kind: str, **args: Any) -> TraceEvent:
        return {
            "ph": "i",
            "s": "p",
            "name": name,
            "cat": kind,
            "pid": self._rank.rank,
            "tid": _STEPS,
            "ts": self._born_us + event.t_us,
            "args": {"step": event.step, **args},
        }

    def _transfer(self, phase: str, queue: str, key: str, event: Event, **args: Any) -> TraceEvent:
        return {
            "ph": phase,
            "name": f"{queue} {key}",
            "cat": queue,
            "id": f"{self._rank.rank}:{queue}:{key}",
            "pid": self._rank.rank,
            "tid": _STEPS,
            "ts": self._born_us + event.t_us,
            "args": {"step": event.step, **args},
        }


def _details(op: Op) -> dict[str, Any]:
    enter = op.enter
    every = {
        "step": enter.step,
        "group": enter.group,
        "peer": enter.peer if enter.peer >= 0 else None,
        "tag": told_tag(enter.tag) if enter.tag >= 0 else None,
        "reduce_op": enter.reduce_op,
        "tensor": f"{enter.dtype} x {enter.numel}" if enter.dtype else "",
        "put": enter.values,
        "got": op.returned,
        "caller": enter.caller,
        "site": enter.site,
    }
    return {name: value for name, value in every.items() if value not in (None, "", [])}


def _arrows(tracks: list[_Track]) -> Iterator[TraceEvent]:
    """A pair of flow events for every message that was both sent and received."""
    ends: dict[tuple[Pipe, int], dict[bool, TraceEvent]] = defaultdict(dict)
    for track in tracks:
        for at, (sends, made) in track.messages.items():
            ends[at][sends] = made
    met = (pair for pair in ends.values() if len(pair) == 2)
    for number, pair in enumerate(met, 1):
        sent, received = pair[True], pair[False]
        flow = {"name": "message", "cat": "message", "id": number}
        yield flow | {"ph": "s", "pid": sent["pid"], "tid": sent["tid"], "ts": sent["ts"]}
        # Bound to the slice that it lies in, at its very end: then the message was there.
        yield flow | {
            "ph": "f",
            "bp": "e",
            "pid": received["pid"],
            "tid": received["tid"],
            "ts": received["ts"] + max(0, received["dur"] - 1),
        }
