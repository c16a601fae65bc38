"""Messages that were not received as they were sent, and buffers that were used too early."""

from collections.abc import Iterator
from itertools import zip_longest

from testbed.analysis.logical_time import Channel
from testbed.analysis.messages import Ends, pipes
from testbed.analysis.sides import Breach, Placed, breaches, told_apart, unequal
from testbed.analysis.standing import site
from testbed.analysis.view import Op, Pipe, View, Way
from testbed.analysis.wait_graph import SENDS
from testbed.model.events import Enter, Touched
from testbed.model.topology import told_tag
from testbed.oracles.crossings import Pair, crossing
from testbed.oracles.offset import came_apart, odd_one


def unlike_messages(view: View, oracle: str, strict: bool) -> Iterator[Placed]:
    """The first one of each pipe. strict: callers and steps have to be equal, see ``pairing``."""
    for pipe, ends in pipes(view).items():
        for place, send, recv in ends.pairs():
            did = _unlike(view, send, recv, strict)
            if did is not None:
                step = min(send.step, recv.step)
                # A buffer that was touched tells which side is wrong.
                odd = [pipe.src] if _touch(view, send) else _odd_end(ends, step)
                yield Placed(unequal(oracle, step, str(pipe), place, did, odd), (pipe, place))
                break
        else:
            if not strict:
                yield from _crossed(oracle, pipe, ends)
                yield from _shifted(view, oracle, pipe, ends)


def _crossed(oracle: str, pipe: Pipe, ends: Ends) -> Iterator[Placed]:
    found = crossing([Pair(*pair) for pair in ends.pairs()], by_name=False)
    if found is not None:
        place, send, recv = found.first
        later = found.second
        did = {
            send.rank: f"sent{_by(send)}, then #{later.place}{_by(later.one)}",
            recv.rank: f"received{_by(recv)}, then #{later.place}{_by(later.other)}",
        }
        step = min(send.step, recv.step)
        yield Placed(unequal(oracle, step, str(pipe), place, did), (pipe, place))


def _shifted(view: View, oracle: str, pipe: Pipe, ends: Ends) -> Iterator[Placed]:
    """Of a run that ended in a deadlock: where one end left its own regular course and made a
    message more or less, so that from there on another one was taken than was meant.
    """
    ranks = [rank for end in (pipe.src, pipe.dst) if (rank := view.ranks.get(end)) is not None]
    if view.record.ended != "deadlock" or len(ranks) < 2:
        return
    sends, recvs = ([op for _, op in sorted(end.items())] for end in (ends.sends, ends.recvs))
    last = min(max((step for step, _ in rank.ended_steps()), default=-1) for rank in ranks)
    apart = came_apart(sends, recvs, last, unequal=False)
    if apart is None or apart.odd is None or apart.place >= min(len(sends), len(recvs)):
        return
    send, recv = sends[apart.place], recvs[apart.place]
    if send.step != recv.step:
        did = {
            send.rank: f"sent in step {send.step}{_by(send)}",
            recv.rank: f"received in step {recv.step}{_by(recv)}",
        }
        odd = [(send.rank, recv.rank)[apart.odd]]
        placed = unequal(oracle, apart.step, str(pipe), apart.place, did, odd)
        yield Placed(placed, (pipe, apart.place))


def _by(op: Op) -> str:
    function = op.enter.caller.rpartition(">")[2]
    return f" by {function} at {op.enter.site}" if op.enter.site else f" by {function}"


def _odd_end(ends: Ends, step: int) -> list[int]:
    """The end that is known to have left its own regular course."""
    sends = [op for _, op in sorted(ends.sends.items())]
    recvs = [op for _, op in sorted(ends.recvs.items())]
    odd = odd_one(sends, recvs, step)
    return [] if odd is None else [(sends, recvs)[odd][0].rank]


def _unlike(view: View, send: Op, recv: Op, strict: bool) -> dict[int, str] | None:
    out, into = send.enter, recv.enter
    tags = _tags(out, into)
    if (out.dtype, out.numel) != (into.dtype, into.numel):
        sides = (f"sent {_shape(send)}{tags[0]}", f"received it as {_shape(recv)}{tags[1]}")
    elif strict and out.caller and into.caller and out.caller != into.caller:
        callers = told_apart([out.caller, into.caller])
        sides = (f"sent by {callers[0]}{tags[0]}", f"received by {callers[1]}{tags[1]}")
    elif out.tag != into.tag:
        sides = (f"sent{tags[0]}", f"received{tags[1]}")
    elif strict and _steps_differ(send, recv):
        sides = (f"sent in step {out.step}", f"received in step {into.step}")
    elif _values_differ(send, recv):
        sides = (f"sent {out.values}{_then(view, send)}", f"received {recv.returned}")
    else:
        return None
    return {send.rank: sides[0], recv.rank: sides[1]}


def _steps_differ(send: Op, recv: Op) -> bool:
    own = send.has_step and recv.has_step and not send.is_model
    return own and send.step != recv.step


def _shape(op: Op) -> str:
    if not op.enter.dtype:
        return "no tensor"
    return f"{op.enter.dtype}[{op.enter.numel}]"


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
    touches = reversed(view.ranks[op.rank].touched)
    return next((touched for touched in touches if Way.of(touched) == op.way), None)


def _values_differ(send: Op, recv: Op) -> bool:
    # An irecv has nothing yet when it returns, and large tensors are recorded without values.
    if recv.enter.op != "recv" or not recv.returned or not send.enter.values:
        return False
    pairs = zip_longest(send.enter.values, recv.returned)
    return any(left != right for left, right in pairs)


# Buffers


def used_buffers(view: View, oracle: str) -> Iterator[Placed]:
    """Buffers of operations that were used before these were waited for."""
    found: dict[tuple[Channel, int], list[Breach]] = {}
    for rank in view.ranks.values():
        for way, touched in {Way.of(touched): touched for touched in rank.touched}.items():
            at = way.channel(rank.rank)
            breach = Breach(touched.step, str(at), rank.rank, _told_touch(touched))
            found.setdefault((at, touched.ordinal), []).append(breach)
    for place, together in found.items():
        for finding in breaches(oracle, together, ordinal=place[1]):
            yield Placed(finding, place)


def _told_touch(touched: Touched) -> str:
    if touched.how == "read":
        return f"read the buffer of its {touched.op} before wait(){site(touched)}"
    # Writes into what is being sent show only when the wait comes.
    seen = " as its wait() showed" if touched.op in SENDS else ""
    return f"wrote into the buffer of its {touched.op} before wait(){seen}{site(touched)}"
