"""The correct ones: what looks like a misuse and is none. Nothing may be said of them."""

import torch
import torch.distributed as dist

from cases.wrong_uses.misuses import numbers, told
from cases.wrong_uses.use import Body, Use
from testbed.protocols import Groups


def message_then_collective(groups: Groups, step: int) -> object:
    value = numbers(groups.rank)
    if groups.rank == 0:
        dist.send(value, 1)
    elif groups.rank == 1:
        dist.recv(value, 0)
    dist.all_reduce(value)
    return told(value)


def used_after_wait(groups: Groups, step: int) -> object:
    value = numbers(groups.rank + 1, 5)
    head = value[:1]
    work = dist.all_reduce(value, async_op=True)
    tail, size = value[1:], (value.shape, value.numel(), value.device, torch.empty_like(value))
    assert work is not None
    work.wait()
    return [told(head), told(tail), len(size)]


def read_while_sending(groups: Groups, step: int) -> object:
    mine, theirs = numbers(groups.rank), numbers(-1)
    receiving = dist.irecv(theirs, 1 - groups.rank)
    sending = dist.isend(mine, 1 - groups.rank)
    assert sending is not None
    assert receiving is not None
    kept = told(mine)
    sending.wait()
    receiving.wait()
    mine.fill_(9)
    return [kept, told(theirs)]


def batch_of_messages(groups: Groups, step: int) -> object:
    mine, theirs = numbers(groups.rank), numbers(-1)
    peer = 1 - groups.rank
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, theirs, peer), dist.P2POp(dist.isend, mine, peer)]
    )
    for work in works:
        work.wait()
    return told(theirs)


def tags_in_other_order(groups: Groups, step: int) -> object:
    first, second = numbers(1), numbers(2)
    if groups.rank == 0:
        works = [dist.isend(first, 1, tag=1), dist.isend(second, 1, tag=2)]
        for work in works:
            assert work is not None
            work.wait()
    else:
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
    return [told(first), told(second)]


def root_by_either_name(groups: Groups, step: int) -> object:
    pair = dist.new_group([1, 2])
    value = numbers(groups.rank)
    if groups.rank == 1:
        dist.broadcast(value, src=1, group=pair)
    elif groups.rank == 2:
        dist.broadcast(value, group_src=0, group=pair)
    gathered = [numbers(0) for _ in range(3)] if groups.rank == 0 else None
    if groups.rank == 0:
        dist.gather(value, gathered)
    else:
        dist.gather(value, dst=0)
    return told(value)


def groups_of_their_own(groups: Groups, step: int) -> object:
    # Made by their members only, and with the same members twice.
    value = numbers(1)
    if groups.rank < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(value, group=pair)
    first, second = dist.new_group([0, 2]), dist.new_group([0, 2])
    if groups.rank != 1:
        dist.all_reduce(value, group=second)
        dist.all_reduce(value, group=first)
    return told(value)


def objects(groups: Groups, step: int) -> object:
    if groups.rank == 0:
        dist.send_object_list(["count", 3], dst=1)
    received: list[object] = [None, None]
    if groups.rank == 1:
        dist.recv_object_list(received, src=0)
    shared: list[object] = [step if groups.rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    everybody: list[object] = [None, None]
    dist.all_gather_object(everybody, groups.rank)
    return [shared, everybody]


def polled_then_read(groups: Groups, step: int) -> object:
    value = numbers(groups.rank + 1)
    work = dist.all_reduce(value, async_op=True)
    assert work is not None
    while not work.is_completed():
        pass
    return told(value)


def receive_from_above(value: torch.Tensor, rank: int) -> None:
    dist.recv(value, rank - 1)


def send_below(value: torch.Tensor, rank: int) -> None:
    dist.send(value, rank + 1)


def ends_in_two_functions(groups: Groups, step: int) -> object:
    value = numbers(step)
    if groups.rank > 0:
        receive_from_above(value, groups.rank)
    if groups.rank < 2:
        send_below(value, groups.rank)
    return told(value)


def publish(value: torch.Tensor, rank: int) -> None:
    dist.broadcast(value, src=rank)


def follow(value: torch.Tensor, rank: int) -> None:
    dist.broadcast(value, src=rank)


def everybody_publishes_in_turn(groups: Groups, step: int) -> object:
    values = [numbers(groups.rank) for _ in range(3)]
    for rank, value in enumerate(values):
        (publish if rank == groups.rank else follow)(value, rank)
    return [told(value) for value in values]


TAKEN_LATER_STEPS = 4


def taken_a_step_later(groups: Groups, step: int) -> object:
    # Rank 0 makes its last one in the last step but one, so that rank 1 has taken them all.
    value = numbers(step)
    if groups.rank == 0 and step + 1 < TAKEN_LATER_STEPS:
        dist.send(value, 1)
    elif groups.rank == 1 and step > 0:
        dist.recv(value, 0)
    return told(value)


def from_any_source(groups: Groups, step: int) -> object:
    value = numbers(groups.rank)
    if groups.rank > 0:
        dist.send(value, 0)
        return None
    senders = [dist.recv(value) for _ in range(2)]
    return sorted(senders)


def _use(name: str, what: str, body: Body, **more: object) -> Use:
    where = f"{__name__}:{name.replace('-', '_').upper()}"
    return Use(name, what, where, body, **more)  # type: ignore[arg-type]


MESSAGE_THEN_COLLECTIVE = _use(
    "message-then-collective",
    "send and recv, then a collective, on one group",
    message_then_collective,
    ranks=3,
    steps=3,
)
USED_AFTER_WAIT = _use(
    "used-after-wait",
    "an asynchronous all_reduce; views are made before, read after its wait()",
    used_after_wait,
)
READ_WHILE_SENDING = _use(
    "read-while-sending",
    "the buffer of an isend is read, not written, before its wait()",
    read_while_sending,
)
BATCH_OF_MESSAGES = _use(
    "batch-of-messages", "batch_isend_irecv both ways", batch_of_messages, steps=2
)
TAGS_IN_OTHER_ORDER = _use(
    "tags-in-other-order",
    "two tags, received in the other order than they were sent in",
    tags_in_other_order,
)
ROOT_BY_EITHER_NAME = _use(
    "root-by-either-name",
    "one root, called src here, group_src there, and left to its default",
    root_by_either_name,
    ranks=3,
)
GROUPS_OF_THEIR_OWN = _use(
    "groups-of-their-own",
    "new groups, local ones, and two with the same members",
    groups_of_their_own,
    ranks=3,
)
OBJECTS = _use("objects", "objects as messages and in collectives", objects, steps=2)
POLLED_THEN_READ = _use(
    "polled-then-read",
    "an asynchronous all_reduce is polled until it is complete, and read then",
    polled_then_read,
)
ENDS_IN_TWO_FUNCTIONS = _use(
    "ends-in-two-functions",
    "a pipeline that sends in one function and receives in another",
    ends_in_two_functions,
    ranks=3,
    steps=3,
)
EVERYBODY_PUBLISHES_IN_TURN = _use(
    "everybody-publishes-in-turn",
    "a broadcast of each rank, the root in one function, the others in another",
    everybody_publishes_in_turn,
    ranks=3,
    steps=2,
)
TAKEN_A_STEP_LATER = _use(
    "taken-a-step-later",
    "a message is received one step after it was sent, by design",
    taken_a_step_later,
    steps=TAKEN_LATER_STEPS,
)
FROM_ANY_SOURCE = _use(
    "from-any-source",
    "receives from any source, whoever comes first",
    from_any_source,
    ranks=3,
    steps=3,
)

CORRECT = tuple(value for value in list(globals().values()) if isinstance(value, Use))
