"""The wrong ones: two or three ranks, each doing what it takes for right.

Each says where the ranks first differ, by the program alone: that is what must be told of it. On
two ranks nobody is in the majority; there the side of rank 0 counts as what was meant.
"""

import sys
import threading

import torch
import torch.distributed as dist

from cases.wrong_uses.use import Body, First, Use
from testbed.model.verdict import Outcome
from testbed.protocols import Groups

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
VIOLATION, DEADLOCK, CRASH, HANG = (
    Outcome.VIOLATION,
    Outcome.DEADLOCK,
    Outcome.CRASH,
    Outcome.HANG,
)


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def told(tensor: torch.Tensor) -> object:
    return tensor.tolist()


# Collectives that differ


def other_operation(groups: Groups, step: int) -> object:
    value = numbers(groups.rank + 1, 5)
    if groups.rank == 0:
        dist.all_reduce(value)
    else:
        dist.broadcast(value, src=1)
    return told(value)


def other_length(groups: Groups, step: int) -> object:
    value = numbers(*([1] * (4 if groups.rank == 0 else 2)))
    dist.all_reduce(value)
    return told(value)


def other_shape(groups: Groups, step: int) -> object:
    # Rank 1 has the transposed matrix: element by element it means other things.
    value = numbers(1, 2, 3, 4, 5, 6).view(2, 3)
    if groups.rank == 1:
        value = value.t().contiguous()
    dist.all_reduce(value)
    return told(value if groups.rank == 0 else value.t())


def other_precision(groups: Groups, step: int) -> object:
    dtype = torch.float32 if groups.rank == 0 else torch.float64
    value = torch.ones(4, dtype=dtype)
    dist.all_reduce(value)
    return told(value)


def other_kind_of_number(groups: Groups, step: int) -> object:
    dtype = torch.float32 if groups.rank == 0 else torch.int32
    value = torch.ones(4, dtype=dtype)
    dist.all_reduce(value)
    return told(value)


def other_reduction(groups: Groups, step: int) -> object:
    value = numbers(*[groups.rank + 1] * 4)
    dist.all_reduce(value, op=SUM if groups.rank == 0 else MAX)
    return told(value)


def reduce_writes(writes: torch.Tensor) -> None:
    dist.all_reduce(writes)


def reduce_loads(loads: torch.Tensor) -> None:
    dist.all_reduce(loads)


def swapped(groups: Groups, step: int) -> object:
    writes, loads = numbers(1), numbers(10)
    if groups.rank == 0:
        reduce_writes(writes)
        reduce_loads(loads)
    else:
        reduce_loads(loads)
        reduce_writes(writes)
    return [told(writes), told(loads)]


def other_root(groups: Groups, step: int) -> object:
    value = numbers(groups.rank + 1)
    dist.broadcast(value, src=groups.rank)
    return told(value)


# Collectives that not everybody takes part in


def one_too_many(groups: Groups, step: int) -> object:
    value = numbers(step)
    dist.all_reduce(value)
    if groups.rank == 1 and step == 1:
        dist.all_reduce(value)
    return told(value)


def missing_rank(groups: Groups, step: int) -> object:
    if groups.rank == 2:
        threading.Event().wait()  # alive, busy with something else, and never comes
    value = numbers(1)
    dist.all_reduce(value)
    return told(value)


def exited_rank(groups: Groups, step: int) -> object:
    if groups.rank == 1:
        sys.exit()
    value = numbers(1)
    dist.all_reduce(value)
    return told(value)


def opposite_order(groups: Groups, step: int) -> object:
    value = numbers(1)
    pair = (groups.world, groups.tp)
    for group in pair if groups.rank == 0 else reversed(pair):
        dist.all_reduce(value, group=group)
    return told(value)


def other_members(groups: Groups, step: int) -> object:
    group = dist.new_group([0, 1] if groups.rank == 0 else [0, 1, 2])
    value = numbers(1)
    dist.all_reduce(value, group=group)
    return told(value)


# Messages


def message(sent: torch.Tensor, received: torch.Tensor, *, tags: tuple[int, int] = (0, 0)) -> Body:
    """Rank 0 sends the one tensor, rank 1 receives into the other."""

    def body(groups: Groups, step: int) -> object:
        if groups.rank == 0:
            dist.send(sent.clone(), 1, tag=tags[0])
            return told(sent)
        buffer = received.clone()
        dist.recv(buffer, 0, tag=tags[1])
        return told(buffer)

    return body


def receive_receive(groups: Groups, step: int) -> object:
    mine, theirs = numbers(groups.rank), numbers(-1)
    dist.recv(theirs, 1 - groups.rank)
    dist.send(mine, 1 - groups.rank)
    return told(theirs)


DONE_TAG = 9


def read_before_wait(groups: Groups, step: int) -> object:
    # Rank 0 sends only when rank 1 has read: a race that always ends the same way.
    if groups.rank == 0:
        dist.recv(numbers(0), 1, tag=DONE_TAG)
        dist.send(numbers(7), 1)
        return None
    value = numbers(-1)
    work = dist.irecv(value, 0)
    early = value.tolist()
    dist.send(numbers(1), 0, tag=DONE_TAG)
    assert work is not None
    work.wait()
    return early


def written_before_wait(groups: Groups, step: int) -> object:
    # Rank 1 receives only when rank 0 has written.
    if groups.rank == 1:
        value = numbers(-1)
        dist.recv(numbers(0), 0, tag=DONE_TAG)
        dist.recv(value, 0)
        return told(value)
    buffer = numbers(7)
    work = dist.isend(buffer, 1)
    buffer.fill_(8)
    dist.send(numbers(1), 1, tag=DONE_TAG)
    assert work is not None
    work.wait()
    return None


def _use(name: str, what: str, body: Body, first: First, why: str, **more: object) -> Use:
    where = f"{__name__}:{name.replace('-', '_').upper()}"
    return Use(name, what, where, body, first, why, **more)  # type: ignore[arg-type]


def _world(ordinal: int = 0, step: int = 0, minority: tuple[int, ...] = (1,)) -> First:
    return First(VIOLATION, step, "world", ordinal, minority, "pairing")


def _pipe(tag: int = 0) -> First:
    return First(VIOLATION, 0, f"world 0->1 tag {tag}", 0, (1,), "pairing")


OTHER_OPERATION = _use(
    "other-operation",
    "all_reduce on one rank, broadcast on the other",
    other_operation,
    _world(),
    "the first operation of the group is not the same on both",
    right={0: [3, 10], 1: [3, 10]},
    deadline_ms=500,
)
OTHER_LENGTH = _use(
    "other-length",
    "all_reduce of 4 elements against 2",
    other_length,
    _world(),
    "the vectors have different lengths",
    deadline_ms=500,
)
OTHER_SHAPE = _use(
    "other-shape",
    "all_reduce of shape 2x3 against 3x2",
    other_shape,
    _world(),
    "the lengths agree, the shapes do not",
    right={0: [[2, 4, 6], [8, 10, 12]], 1: [[2, 4, 6], [8, 10, 12]]},
)
OTHER_PRECISION = _use(
    "other-precision",
    "all_reduce of float32 against float64",
    other_precision,
    _world(),
    "the dtypes differ",
    right={0: [2.0] * 4, 1: [2.0] * 4},
)
OTHER_KIND_OF_NUMBER = _use(
    "other-kind-of-number",
    "all_reduce of float32 against int32",
    other_kind_of_number,
    _world(),
    "the dtypes differ",
    right={0: [2.0] * 4, 1: [2] * 4},
)
OTHER_REDUCTION = _use(
    "other-reduction",
    "all_reduce SUM against MAX",
    other_reduction,
    _world(),
    "the reduce ops differ",
    right={0: [3] * 4, 1: [3] * 4},
)
SWAPPED = _use(
    "swapped",
    "two reductions of one shape in the other order",
    swapped,
    _world(),
    "writes meet loads: only the functions that called tell them apart",
    right={0: [[2], [20]], 1: [[2], [20]]},
)
OTHER_ROOT = _use(
    "other-root",
    "broadcast from root 0 against root 1",
    other_root,
    _world(),
    "the roots differ",
    right={0: [1], 1: [1]},
    deadline_ms=500,
)
ONE_TOO_MANY = _use(
    "one-too-many",
    "one rank makes an all_reduce too many, in the middle of a series",
    one_too_many,
    _world(ordinal=2, step=1),
    "its second one of step 1 meets the other's of step 2; it blocks one step after that",
    steps=4,
    right={0: [6], 1: [6]},
)
MISSING_RANK = _use(
    "missing-rank",
    "a rank that is alive never comes to the all_reduce",
    missing_rank,
    First(HANG, 0, "world", 0, (2,)),
    "two ranks of three have entered; the third stands in no operation, so nothing can be proven",
    ranks=3,
    deadline_ms=500,
)
EXITED_RANK = _use(
    "exited-rank",
    "a rank exits before the all_reduce",
    exited_rank,
    First(CRASH, 0, "world", 0, (1,)),
    "the rank that exits is the root, the other's broken connection its echo",
)
OPPOSITE_ORDER = _use(
    "opposite-order",
    "two groups in opposite order",
    opposite_order,
    First(DEADLOCK, 0, "world", 0, (1,)),
    "each rank waits in the group that the other enters second",
    right={0: [4], 1: [4]},
)
OTHER_MEMBERS = _use(
    "other-members",
    "ranks that disagree on the members of a new group",
    other_members,
    _world(minority=(0,)),
    "the first thing they do together is to make the group, with other members on rank 0",
    ranks=3,
)
SEND_LONGER = _use(
    "send-longer",
    "a message longer than the buffer it is received into",
    message(numbers(1, 2, 3, 4), numbers(0, 0)),
    _pipe(),
    "4 elements sent, 2 received",
)
SEND_SHORTER = _use(
    "send-shorter",
    "a message shorter than the buffer it is received into",
    message(numbers(1, 2), numbers(0, 0, 0, 0)),
    _pipe(),
    "2 elements sent, 4 received",
    right={0: [1, 2], 1: [1, 2]},
)
SEND_OTHER_DTYPE = _use(
    "send-other-dtype",
    "int32 sent, int64 of as many bytes received",
    message(numbers(1, 2), torch.zeros(1, dtype=torch.int64)),
    _pipe(),
    "the dtypes differ, the bytes fit",
    right={0: [1, 2], 1: [1, 2]},
)
OTHER_TAG = _use(
    "other-tag",
    "sent under tag 1, awaited under tag 2",
    message(numbers(7), numbers(0), tags=(1, 2)),
    First(DEADLOCK, 0, "world 0->1 tag 1", 0, (1,)),
    "rank 0 waits in tag 1 for its receiver, rank 1 in tag 2 for its sender",
    right={0: [7], 1: [7]},
)
RECEIVE_RECEIVE = _use(
    "receive-receive",
    "both ranks receive first",
    receive_receive,
    First(DEADLOCK, 0, "world 1->0 tag 0", 0, (1,)),
    "each waits for what the other sends afterwards",
    right={0: [1], 1: [0]},
)
READ_BEFORE_WAIT = _use(
    "read-before-wait",
    "an irecv's buffer is read before its wait()",
    read_before_wait,
    First(VIOLATION, 0, "world 0->1 tag 0", 0, (1,), "pairing"),
    "rank 1 uses what has not come",
    right={0: None, 1: [7]},
)
WRITTEN_BEFORE_WAIT = _use(
    "written-before-wait",
    "an isend's buffer is written before its wait()",
    written_before_wait,
    First(VIOLATION, 0, "world 0->1 tag 0", 0, (0,), "pairing"),
    "rank 0 changes what is still to be sent",
    right={0: None, 1: [7]},
)

WRONG = tuple(value for value in list(globals().values()) if isinstance(value, Use))
