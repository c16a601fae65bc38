"""Which receive took which message, pipe by pipe."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from testbed.analysis.view import Op, Pipe, View
from testbed.analysis.wait_graph import ANY


class Ends(NamedTuple):
    """Both ends of one pipe: place in it -> the operation. whole: it is known of every receive that
    may have taken a message here whether it did.
    """

    sends: dict[int, Op]
    recvs: dict[int, Op]
    whole: bool

    def pairs(self) -> Iterator[tuple[int, Op, Op]]:
        """Messages that both ends entered: place, send, receive, in order."""
        for place in sorted(self.sends.keys() & self.recvs.keys()):
            yield place, self.sends[place], self.recvs[place]


class _Mailbox(NamedTuple):
    """What the receives from any source of a rank share: its group, itself, tag or NO_TAG."""

    group: str
    dst: int
    tag: int


def pipes(view: View) -> dict[Pipe, Ends]:
    """Every pipe that a message was sent or awaited in.

    The n-th receive of a pipe takes its n-th message. Where a rank also receives from any source,
    the receives of a pipe are those that took a message of its sender, in order.
    """
    sends: dict[Pipe, dict[int, Op]] = defaultdict(dict)
    recvs: dict[Pipe, dict[int, Op]] = defaultdict(dict)
    mailboxes: dict[_Mailbox, list[Op]] = defaultdict(list)
    open_to_any: set[_Mailbox] = set()
    for rank in view.ranks.values():
        for op in rank.ops:
            if op.is_send:
                sends[op.pipe][op.enter.ordinal] = op
            elif op.is_recv:
                mailbox = _mailbox(op.pipe)
                mailboxes[mailbox].append(op)
                recvs[op.pipe][op.enter.ordinal] = op
                if op.enter.peer == ANY:
                    open_to_any.add(mailbox)
    unknown: set[_Mailbox] = set()
    for mailbox in open_to_any:
        for pipe in [pipe for pipe in recvs if _mailbox(pipe) == mailbox]:
            del recvs[pipe]
        taken, whole = _by_source(mailbox, mailboxes[mailbox])
        if whole:
            recvs.update(taken)
        else:
            unknown.add(mailbox)
    return {
        pipe: Ends(sends.get(pipe, {}), recvs.get(pipe, {}), _mailbox(pipe) not in unknown)
        for pipe in dict.fromkeys([*sends, *recvs])
    }


def _mailbox(pipe: Pipe) -> _Mailbox:
    return _Mailbox(pipe.group, pipe.dst, pipe.tag)


def _by_source(mailbox: _Mailbox, ops: list[Op]) -> tuple[dict[Pipe, dict[int, Op]], bool]:
    """Per sender the receives that took its messages; and whether that is known of all of them."""
    found: dict[Pipe, dict[int, Op]] = defaultdict(dict)
    whole = True
    for op in ops:
        source = op.source if op.enter.peer == ANY else op.enter.peer
        if source != ANY:
            pipe = Pipe(mailbox.group, source, mailbox.dst, mailbox.tag)
            found[pipe][len(found[pipe])] = op
        elif not (op.enter.op == "recv" and op.returned is None):
            whole = False
    return found, whole
