"""pairing: the n-th operation of a channel is the same operation on everyone who takes part."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple

from testbed.oracles.causal import Channel, depths
from testbed.oracles.sides import (
    Breach,
    breaches,
    difference,
    diverged,
    singled_out,
    told_apart,
)
from testbed.oracles.standing import site
from testbed.oracles.view import Op, Pipe, RankView, View
from testbed.topology import told_tag
from testbed.trace.events import Enter, Touched
from testbed.trace.waits import SENDS
from testbed.verdict import Finding

NAME = "pairing"
NEW_GROUP = "new_group"

_Way = tuple[str, str, int, int, int]


class _Found(NamedTuple):
    finding: Finding
    at: tuple[Channel, int]


def check(view: View) -> Iterable[Finding]:
    """Collectives of a group agree in kind, root, reduce op, shape, dtype, caller and step, and
    new groups in their members; a message is received with the length, dtype, meaning (the chain of
    callers) and values it was sent with, and in the step it was sent in, but for the model's
    traffic, which may lag; over NCCL, which knows no tags and gives the n-th receive the n-th
    message of its sender, also under the tag it was sent under; the buffer of an operation that was
    not waited for yet is left alone.

    Only what both sides entered is compared: a receive without a send, or a collective entered by
    some, is for the hang and deadlock reports. The first mismatch of a channel is told: it shifts
    the rest. Of several the one that came before the others is told first. A message's shape is
    not compared: to receive a matrix into a flat buffer is common.
    """
    found = [*_collectives(view), *_messages(view), *_buffers(view)]
    if len(found) > 1:
        depth = depths(view)
        found.sort(key=lambda one: (one.finding.step, depth.get(one.at, 0)))
    return [one.finding for one in found]


def _collectives(view: View) -> Iterator[_Found]:
    groups: dict[str, list[list[Op]]] = {}
    for rank in view.ranks.values():
        for op in rank.ops:
            if op.is_collective:
                series = groups.setdefault(op.enter.group, [])
                series.extend([] for _ in range(op.enter.ordinal + 1 - len(series)))
                series[op.enter.ordinal].append(op)
    for group, series in groups.items():
        for ordinal, ops in enumerate(series):
            if any(_signature(op) != _signature(ops[0]) for op in ops[1:]):
                step = min(op.step for op in ops)
                finding = difference(NAME, diverged(step, group, ordinal, _told(ops)))
                yield _Found(finding, (group, ordinal))
                break


def _signature(op: Op) -> tuple[object, ...]:
    enter = op.enter
    return (
        enter.op,
        enter.peer,
        enter.reduce_op,
        enter.dtype,
        enter.numel,
        tuple(enter.shape),
        tuple(enter.values) if enter.op == NEW_GROUP else (),
        enter.caller,
        enter.step,
    )


def _told(ops: list[Op]) -> dict[int, str]:
    callers = told_apart([op.enter.caller for op in ops])
    by_step = len({op.step for op in ops}) > 1
    by_root = len({op.enter.peer for op in ops}) > 1
    by_shape = len({op.enter.numel for op in ops}) == 1
    told = {}
    for op, caller in zip(ops, callers, strict=True):
        enter = op.enter
        kind = f"{enter.op} {enter.reduce_op}".strip()
        root = f" of root {enter.peer}" if by_root and enter.peer >= 0 else ""
        when = f" in step {enter.step}" * by_step
        what = _whole_shape(op) if by_shape else _shape(op)
        told[op.rank] = f"{kind} of {what}{root} by {caller}{when}"
    return told


def _shape(op: Op) -> str:
    return f"{op.enter.dtype}[{op.enter.numel}]" if op.enter.dtype else _whole_shape(op)


def _whole_shape(op: Op) -> str:
    enter = op.enter
    if enter.op == NEW_GROUP:
        return f"ranks {','.join(map(str, enter.values))}"
    if not enter.dtype:
        return "no tensor"
    sizes = enter.shape if len(enter.shape) > 1 else (enter.numel,)
    return f"{enter.dtype}[{','.join(map(str, sizes))}]"


def _messages(view: View) -> Iterator[_Found]:
    sent: dict[Pipe, dict[int, Op]] = {}
    received: dict[Pipe, dict[int, Op]] = {}
    for rank in view.ranks.values():
        for op in rank.ops:
            if op.is_send:
                sent.setdefault(op.pipe, {})[op.enter.ordinal] = op
            elif op.is_recv and op.enter.peer >= 0:
                received.setdefault(op.pipe, {})[op.enter.ordinal] = op
    for pipe, recvs in received.items():
        sends = sent.get(pipe, {})
        for ordinal in sorted(recvs.keys() & sends.keys()):
            did = _mismatch(view, sends[ordinal], recvs[ordinal])
            if did is not None:
                step = min(sends[ordinal].step, recvs[ordinal].step)
                if _touch(view, sends[ordinal]):  # then it is known which side is wrong
                    told = singled_out(step, str(pipe), did, (pipe.src,), ordinal)
                else:
                    told = diverged(step, str(pipe), ordinal, did)
                yield _Found(difference(NAME, told), (pipe, ordinal))
                break


def _mismatch(view: View, send: Op, recv: Op) -> dict[int, str] | None:
    out, into = send.enter, recv.enter
    tags = _tags(out, into)
    if (out.dtype, out.numel) != (into.dtype, into.numel):
        sides = (f"sent {_shape(send)}{tags[0]}", f"received it as {_shape(recv)}{tags[1]}")
    elif out.caller != into.caller:
        callers = told_apart([out.caller, into.caller])
        sides = (f"sent by {callers[0]}{tags[0]}", f"received by {callers[1]}{tags[1]}")
    elif out.tag != into.tag:
        sides = (f"sent{tags[0]}", f"received{tags[1]}")
    elif out.step != into.step and not send.is_model:
        sides = (f"sent in step {out.step}", f"received in step {into.step}")
    elif _values_differ(send, recv):
        sides = (f"sent {out.values}{_then(view, send)}", f"received {recv.returned}")
    else:
        return None
    return {send.rank: sides[0], recv.rank: sides[1]}


def _tags(out: Enter, into: Enter) -> tuple[str, str]:
    """Where a message was received under another tag: only a group without tags pairs such two."""
    if out.tag == into.tag:
        return "", ""
    sent, received = told_tag(out.tag), told_tag(into.tag)
    return f" under tag {sent}", f" under tag {received}: NCCL knows no tags, only the order"


def _then(view: View, send: Op) -> str:
    touched = _touch(view, send)
    return f", then {_told_touch(touched)}" if touched else ""


def _touch(view: View, op: Op) -> Touched | None:
    return _touches(view.ranks[op.rank]).get(_way(op.enter))


def _buffers(view: View) -> Iterator[_Found]:
    found: dict[tuple[Channel, int], list[Breach]] = {}
    for rank in view.ranks.values():
        ops = {_way(op.enter): op for op in rank.ops if not op.is_wait}
        for way, touched in _touches(rank).items():
            op = ops[way]
            at = op.enter.group if op.is_collective else op.pipe
            breach = Breach(touched.step, str(at), rank.rank, _told_touch(touched))
            found.setdefault((at, touched.ordinal), []).append(breach)
    for place, together in found.items():
        for finding in breaches(NAME, together, ordinal=place[1]):
            yield _Found(finding, place)


def _touches(rank: RankView) -> Mapping[_Way, Touched]:
    return {_way(touched): touched for touched in rank.touched}


def _way(of: Enter | Touched) -> _Way:
    return (of.op, of.group, of.ordinal, of.peer, of.tag)


def _told_touch(touched: Touched) -> str:
    if touched.how == "read":
        return f"read the buffer of its {touched.op} before wait(){site(touched)}"
    # Writes into what is being sent show only when the wait comes.
    seen = " as its wait() showed" if touched.op in SENDS else ""
    return f"wrote into the buffer of its {touched.op} before wait(){seen}{site(touched)}"


def _values_differ(send: Op, recv: Op) -> bool:
    # An irecv has nothing yet when it returns, and large tensors are recorded without values.
    if recv.enter.op != "recv" or not recv.returned or not send.enter.values:
        return False
    pairs = zip_longest(send.enter.values, recv.returned)
    return any(left != right for left, right in pairs)
