"""Everything a rank can leave in its flight recorder: one NamedTuple per kind of event.

``step`` is the rank's own scheduler step (-1 before the first), ``t_us`` microseconds since the
rank's start on its own clock: for people only, no oracle orders by it. An event travels as the list
``[code, step, t_us, *fields]``, code being its place in EVENT_TYPES; new kinds go at the end.
Queues are named ``write``, ``load``, and for storage ``prefetch``, ``backup``, ``release``,
``sidecar:<pool>``. Transfers and storage operations carry a *key* that is the same on every rank.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

MODEL = "model"
"""Caller of the model's own traffic: no operation of the subject's, but on the same channels."""


class Frame(NamedTuple):
    """One frame of a stack or a traceback, no event of its own. site: ``file.py:12``. is_subjects:
    whether it runs code of the subject, as seen on the machine where it ran.
    """

    function: str
    site: str
    is_subjects: bool


class Begin(NamedTuple):
    """A step starts: what the ACK queues (head first) and storage queues hold before the protocol
    runs.

    write / load: [[key, ready], ...], ready by a silent peek that counts as no query. storage:
    queue name -> number of items.
    """

    step: int
    t_us: int
    write: list[list[Any]]
    load: list[list[Any]]
    storage: dict[str, int]


class End(NamedTuple):
    """A step is over: what is left.

    write / load: keys in the ACK queues. pending_*: keys in the subject's pending maps. sends:
    length of its list of outstanding sends. locks: sum of [lock_ref, host_lock_ref] over all nodes.
    tree: digest of which node is usable on device and on host, equal where ranks agree.
    """

    step: int
    t_us: int
    write: list[str]
    load: list[str]
    pending_write: list[str]
    pending_load: list[str]
    storage: dict[str, int]
    sends: int
    locks: list[int]
    tree: int


class Enter(NamedTuple):
    """A torch.distributed call is entered.

    op: all_reduce, send, isend, recv, irecv, wait, ... group: its name. ordinal: 0-based among this
    rank's operations of that channel (collectives: the group; messages: group, source, destination
    and tag, but for NCCL's groups, which know none). peer: global rank of the other end, -1 for
    collectives. tag: -1 likewise. reduce_op: "MIN" ... or "". dtype: "int32" ... numel: elements.
    values: the first elements of a small integer tensor as sent, else []. caller: the subject's
    functions that led here, outermost first, joined by ">". A Work's wait is ``wait`` for a send
    and ``wait_<op>`` otherwise; its ordinal and peer are those of the awaited operation. peer of a
    collective with a root: the root. A ``new_group`` is an operation of the group that makes it,
    its values the members asked for. shape: of a tensor of two dimensions or more, else empty (as
    in older records). site: ``file.py:line`` of the innermost of those functions.
    """

    step: int
    t_us: int
    op: str
    group: str
    ordinal: int
    peer: int
    tag: int
    reduce_op: str
    dtype: str
    numel: int
    values: list[int]
    caller: str
    shape: Sequence[int] = ()
    site: str = ""
    thread: int = 0
    timed: bool = False


class Operation(NamedTuple):
    """What the calls of one place have in common: an Enter but for step, time, ordinal and values.
    No event of its own.
    """

    op: str
    group: str
    peer: int
    tag: int
    reduce_op: str
    dtype: str
    numel: int
    caller: str
    shape: Sequence[int]
    site: str
    timed: bool = False

    def entered(
        self, step: int, t_us: int, ordinal: int, values: list[int], thread: int = 0
    ) -> Enter:
        """One call of it."""
        return Enter(step, t_us, ordinal=ordinal, values=values, thread=thread, **self._asdict())


class Exit(NamedTuple):
    """The call that this thread entered last has returned; values as in Enter, after the call.

    work: a Work was handed to Python code: the operation is over when that is waited for. source:
    global rank of the sender, for a receive (or its wait) from any source; -1 for all others.
    """

    step: int
    t_us: int
    values: list[int]
    thread: int = 0
    work: bool = False
    source: int = -1


class Start(NamedTuple):
    """A transfer was enqueued. queue: write or load. ready: "steps:<absolute step>", "ms:<n>",
    "never" or "error"; as scripted, faults included.
    """

    step: int
    t_us: int
    queue: str
    key: str
    ready: str


class Query(NamedTuple):
    """The subject asked an event ``query()``."""

    step: int
    t_us: int
    key: str
    ready: bool


class Sync(NamedTuple):
    """The subject entered ``synchronize()``. stall: steps until the script would have had it ready
    (0: it was ready; -1: a real wait, in milliseconds or for ever)."""

    step: int
    t_us: int
    key: str
    stall: int
    thread: int = 0


class Synced(NamedTuple):
    """``synchronize()`` returned."""

    step: int
    t_us: int
    key: str
    thread: int = 0


class Complete(NamedTuple):
    """The subject completed a transfer (backed up, locks released). ready: its own event was
    ready or had been synchronised. bad_pages: pages whose bytes are not what they must be.
    """

    step: int
    t_us: int
    queue: str
    key: str
    ready: bool
    bad_pages: int


class Block(NamedTuple):
    """The subject waits for an item of an empty local queue."""

    step: int
    t_us: int
    queue: str
    thread: int = 0


class Take(NamedTuple):
    """The subject took an item from a storage control queue."""

    step: int
    t_us: int
    queue: str
    key: str
    thread: int = 0


class Evict(NamedTuple):
    """The cache evicted nodes. where: device or host."""

    step: int
    t_us: int
    where: str
    keys: list[str]


class Request(NamedTuple):
    """A request was admitted: pages found on device, pages found on host, pages computed anew."""

    step: int
    t_us: int
    key: str
    device_hit: int
    host_hit: int
    computed: int


class Fired(NamedTuple):
    """A fault took effect. fault: its place in the scenario's list."""

    step: int
    t_us: int
    fault: int
    kind: str
    detail: str


class Raised(NamedTuple):
    """The rank's loop ended by an exception. inside: op name if it came out of a
    torch.distributed call. frames: where it was raised, innermost first; none in older records.
    trouble: why it is the testbed's own failure, "" where it is the subject's.
    """

    step: int
    t_us: int
    type: str
    message: str
    traceback: str
    inside: str
    frames: Sequence[Frame] = ()
    trouble: str = ""


class Final(NamedTuple):
    """Books at the end of the loop. device / host: pool pages as {"total", "free", "tree",
    "flight"}: free + tree + flight must be total. locks, explained: [lock_ref, host_lock_ref]
    summed, and what the pending maps account for. pending: keys per pending map. sends: after
    the last drain.
    """

    step: int
    t_us: int
    device: dict[str, int]
    host: dict[str, int]
    locks: list[int]
    explained: list[int]
    pending: dict[str, list[str]]
    sends: int


class About(NamedTuple):
    """Who the subject is: what it promises of itself, and the versions of all that ran.

    born_us: the machine's monotonic clock, in microseconds, at this rank's t_us 0.
    """

    step: int
    t_us: int
    promises: dict[str, Any]
    versions: dict[str, str]
    born_us: int = 0


class Group(NamedTuple):
    """The rank uses a process group that the topology does not know. ranks: its members as this
    rank sees them, global.
    """

    step: int
    t_us: int
    name: str
    ranks: list[int]


class Touched(NamedTuple):
    """The buffer of an operation was used before that operation was waited for.

    how: ``read`` or ``written``. op, group, ordinal, peer, tag: the operation. caller, site: who
    did it, as in Enter; for a write into a buffer being sent, where its wait came to show it.
    """

    step: int
    t_us: int
    how: str
    op: str
    group: str
    ordinal: int
    peer: int
    tag: int
    caller: str
    site: str


class Call(NamedTuple):
    """The rank's loop calls the subject for something besides its check. call: what, as scenarios
    name it. key: the request or load it is about, "" for none.
    """

    step: int
    t_us: int
    call: str
    key: str


class Answer(NamedTuple):
    """That call has returned. answer: "yes" or "no" where it is a question, else ""."""

    step: int
    t_us: int
    call: str
    key: str
    answer: str


class Measured(NamedTuple):
    """Figures of a benchmark, taken on this rank (``testbed.bench``). what: the kind of them."""

    step: int
    t_us: int
    what: str
    figures: dict[str, Any]


class Arrived(NamedTuple):
    """All pages that storage had for a prefetch are in the host pool. key: its request."""

    step: int
    t_us: int
    key: str


class Left(NamedTuple):
    """The call that this thread entered last was left by an exception. type: its class."""

    step: int
    t_us: int
    type: str
    thread: int = 0


class Settled(NamedTuple):
    """The program learnt otherwise than by ``wait()`` that an asynchronous operation is over, or
    took its future. how: ``polled`` or ``future``. op, group, ordinal, peer, tag: the operation.
    """

    step: int
    t_us: int
    how: str
    op: str
    group: str
    ordinal: int
    peer: int
    tag: int


class Dropped(NamedTuple):
    """The Work of an asynchronous operation was thrown away before anybody waited for it. op,
    group, ordinal, peer, tag: the operation.
    """

    step: int
    t_us: int
    op: str
    group: str
    ordinal: int
    peer: int
    tag: int


Event = (
    Begin
    | End
    | Enter
    | Exit
    | Start
    | Query
    | Sync
    | Synced
    | Complete
    | Block
    | Take
    | Evict
    | Request
    | Fired
    | Raised
    | Final
    | About
    | Group
    | Touched
    | Call
    | Answer
    | Measured
    | Arrived
    | Left
    | Settled
    | Dropped
)

EVENT_TYPES: tuple[type[Event], ...] = (
    Begin,
    End,
    Enter,
    Exit,
    Start,
    Query,
    Sync,
    Synced,
    Complete,
    Block,
    Take,
    Evict,
    Request,
    Fired,
    Raised,
    Final,
    About,
    Group,
    Touched,
    Call,
    Answer,
    Measured,
    Arrived,
    Left,
    Settled,
    Dropped,
)
CODES: dict[type[Event], int] = {kind: code for code, kind in enumerate(EVENT_TYPES)}


def decode(raw: list[Any]) -> Event:
    """``[code, step, t_us, *fields]`` -> the event."""
    event: Event = EVENT_TYPES[raw[0]](*raw[1:])
    return event


def checked(raw: list[Any]) -> Event:
    """As ``decode``, of data from anywhere. Raises ValueError telling what is wrong with them."""
    code = raw[0] if raw else None
    if type(code) is not int or not 0 <= code < len(EVENT_TYPES):
        raise ValueError(f"no event has the code {code!r}")
    event: Event = msgspec.convert(raw[1:], EVENT_TYPES[code])
    return event
