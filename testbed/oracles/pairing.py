"""pairing: the n-th operation of a channel is the same operation on everyone who takes part."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from testbed.oracles.sides import difference, diverged, told_apart
from testbed.oracles.view import Op, Pipe, View
from testbed.verdict import Finding

NAME = "pairing"


def check(view: View) -> Iterable[Finding]:
    """Collectives of a group agree in kind, root, reduce op, length, dtype, caller and step; a
    message is received with the length, dtype, meaning (the chain of callers) and values it was
    sent with.

    Only what both sides entered is compared: a receive without a send, or a collective entered by
    some, is for the hang and deadlock reports. The first mismatch of a channel is told: it shifts
    the rest.
    """
    yield from _collectives(view)
    yield from _messages(view)


def _collectives(view: View) -> Iterator[Finding]:
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
                yield difference(NAME, diverged(step, group, ordinal, _told(ops)))
                break


def _signature(op: Op) -> tuple[object, ...]:
    enter = op.enter
    return (
        enter.op,
        enter.peer,
        enter.reduce_op,
        enter.dtype,
        enter.numel,
        enter.caller,
        enter.step,
    )


def _told(ops: list[Op]) -> dict[int, str]:
    callers = told_apart([op.enter.caller for op in ops])
    by_step = len({op.step for op in ops}) > 1
    by_root = len({op.enter.peer for op in ops}) > 1
    told = {}
    for op, caller in zip(ops, callers, strict=True):
        enter = op.enter
        kind = f"{enter.op} {enter.reduce_op}".strip()
        root = f" of root {enter.peer}" * by_root
        when = f" in step {enter.step}" * by_step
        told[op.rank] = f"{kind} of {_shape(op)}{root} by {caller}{when}"
    return told


def _shape(op: Op) -> str:
    return f"{op.enter.dtype}[{op.enter.numel}]" if op.enter.dtype else "no tensor"


def _messages(view: View) -> Iterator[Finding]:
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
            did = _mismatch(sends[ordinal], recvs[ordinal])
            if did is not None:
                step = min(sends[ordinal].step, recvs[ordinal].step)
                yield difference(NAME, diverged(step, str(pipe), ordinal, did))
                break


def _mismatch(send: Op, recv: Op) -> dict[int, str] | None:
    out, into = send.enter, recv.enter
    if (out.dtype, out.numel) != (into.dtype, into.numel):
        sides = (f"sent {_shape(send)}", f"received it as {_shape(recv)}")
    elif out.caller != into.caller:
        callers = told_apart([out.caller, into.caller])
        sides = (f"sent by {callers[0]}", f"received by {callers[1]}")
    elif _values_differ(send, recv):
        sides = (f"sent {out.values}", f"received {recv.returned}")
    else:
        return None
    return {send.rank: sides[0], recv.rank: sides[1]}


def _values_differ(send: Op, recv: Op) -> bool:
    # An irecv has nothing yet when it returns, and large tensors are recorded without values.
    if recv.enter.op != "recv" or not recv.returned or not send.enter.values:
        return False
    pairs = zip_longest(send.enter.values, recv.returned)
    return any(left != right for left, right in pairs)
