"""What each program is run with, and how it is broken.

Where a broken one must be found is reasoned from the program: the rank that is wrong, and the
channel on which its peers first miss it. Of a message both ends are named, since two have no
majority; of a collective, whoever left it out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from testbed.programs.plan import Break

ROOM = "cases.peers.programs."


@dataclass(frozen=True)
class Broken:
    """A program broken in one way.

    what: in a few words. breaks: damage above the recorder. args: arguments besides the program's
    own, where damage cannot express it. rank: who is wrong. at: what must be told of where the
    ranks first differed. unseen: why no record can show it; then nothing is to be found.
    """

    what: str
    rank: int
    at: tuple[str, ...] = ()
    breaks: tuple[Break, ...] = ()
    args: dict[str, Any] = field(default_factory=dict)
    unseen: str = ""


@dataclass(frozen=True)
class Peer:
    """A program, the ranks it runs on and how it is broken. needs: a package of its own."""

    name: str
    function: str
    ranks: int
    args: dict[str, Any] = field(default_factory=dict)
    broken: tuple[Broken, ...] = ()
    needs: str = ""
    in_tests: bool = False

    @property
    def program(self) -> str:
        """As ``package.module:function``."""
        return ROOM + self.function


SEND_DROPPED, RECEIVE_DROPPED = "a send dropped", "a receive dropped"
SWAPPED = "two microbatches swapped"
DTYPE = "another dtype"
SKIPPED = "a collective skipped"
CROSSED = "two groups in opposite order"


def send_dropped(rank: int, to: int, nth: int = 0, op: str = "isend") -> Broken:
    """The next message takes its place, or none comes: seen between these two."""
    return Broken(SEND_DROPPED, rank, (f"{rank}->{to}",), (Break("skip", rank, op, nth),))


def receive_dropped(rank: int, source: int, nth: int = 0, op: str = "irecv") -> Broken:
    """The next receive takes its message, or none does: seen between these two."""
    return Broken(RECEIVE_DROPPED, rank, (f"{source}->{rank}",), (Break("skip", rank, op, nth),))


def dtype(rank: int, to: int, nth: int = 0, op: str = "isend") -> Broken:
    """The message goes as another type of the same size."""
    at = (f"{rank}->{to}", " sent int")
    return Broken(DTYPE, rank, at, (Break("dtype", rank, op, nth),))


def collective_dtype(rank: int, op: str, nth: int = 0) -> Broken:
    """One member takes its tensors for another type."""
    return Broken(DTYPE, rank, (op, "int32", "float32"), (Break("dtype", rank, op, nth),))


def skipped(rank: int, op: str, nth: int = 0) -> Broken:
    """The others are in it; the rank is in the next one, or nowhere."""
    return Broken(SKIPPED, rank, (op,), (Break("skip", rank, op, nth),))


def swapped(rank: int, to: int, nth: int = 0, op: str = "isend", unseen: str = "") -> Broken:
    """Two messages in a row that differ in their size."""
    return Broken(SWAPPED, rank, (f"{rank}->{to}",), (Break("swap", rank, op, nth),), unseen=unseen)


_ALIKE = "the two messages are alike in all but their numbers"


def _messages() -> Iterator[Peer]:
    yield Peer(
        "batched ring",
        "messages:batched_ring",
        3,
        broken=(send_dropped(1, 2, 1), receive_dropped(1, 0, 1), dtype(1, 2, 1)),
        in_tests=True,
    )
    # Rank 1 leads in turn 1, and sends to 0, then to 2; it follows rank 0 in turn 0 and 3.
    yield Peer(
        "publish / follow",
        "messages:publish_follow",
        3,
        broken=(
            send_dropped(1, 0, 0, "send"),
            receive_dropped(1, 0, 0, "recv"),
            dtype(1, 0, 0, "send"),
        ),
        in_tests=True,
    )
    yield Peer(
        "a ring one round late",
        "messages:late_ring",
        3,
        broken=(
            send_dropped(1, 2, 3),
            receive_dropped(1, 0, 3, "recv"),
            dtype(2, 0, 1),
            swapped(1, 2, 0, unseen=_ALIKE),
        ),
        in_tests=True,
    )
    # The worker waits for its answer; rank 0 waits for a result from anybody. Whom rank 0 answers
    # first is up to the moment.
    yield Peer(
        "receives from anybody",
        "messages:from_anybody",
        3,
        broken=(
            Broken(SEND_DROPPED, 1, ("any->0",), (Break("skip", 1, "send", 2),)),
            dtype(1, 0, 0, "send"),
        ),
        in_tests=True,
    )
    yield Peer(
        "early and late waits",
        "messages:early_and_late_waits",
        3,
        broken=(send_dropped(1, 0), receive_dropped(1, 0), dtype(1, 0)),
        in_tests=True,
    )
    yield Peer(
        "objects",
        "messages:objects",
        3,
        broken=(skipped(2, "all_gather_object"), send_dropped(0, 1, 0, "send")),
    )
    yield Peer(
        "tags apart",
        "messages:tags_apart",
        2,
        broken=(
            send_dropped(1, 0, 1),
            Broken(DTYPE, 1, ("1->0 tag 1", "int32"), (Break("dtype", 1, "isend", 0),)),
        ),
    )


def _collectives() -> Iterator[Peer]:
    yield Peer(
        "every kind of collective",
        "collectives:every_kind",
        3,
        broken=(
            skipped(2, "all_reduce"),
            skipped(2, "all_gather"),
            collective_dtype(2, "reduce_scatter_tensor"),
        ),
        in_tests=True,
    )
    yield Peer(
        "uneven exchange",
        "collectives:uneven_exchange",
        3,
        broken=(skipped(1, "all_to_all_single"), collective_dtype(1, "all_to_all_single")),
        in_tests=True,
    )
    yield Peer(
        "futures and polls",
        "collectives:futures",
        3,
        broken=(skipped(2, "broadcast"), collective_dtype(1, "broadcast")),
        in_tests=True,
    )
    yield Peer(
        "methods of the group",
        "collectives:by_methods",
        3,
        broken=(skipped(2, "broadcast"), send_dropped(0, 1), dtype(1, 0)),
        in_tests=True,
    )
    yield Peer(
        "a root that goes round",
        "collectives:root_goes_round",
        3,
        broken=(skipped(1, "broadcast", 1), skipped(2, "reduce", 1)),
        in_tests=True,
    )
    yield Peer(
        "coalesced",
        "collectives:coalesced",
        3,
        broken=(
            skipped(2, "all_reduce_coalesced"),
            collective_dtype(1, "all_gather_coalesced"),
        ),
    )
    yield Peer(
        "functional collectives",
        "collectives:functional_collectives",
        3,
        in_tests=True,
    )
    yield Peer(
        "functional collectives, one checked",
        "collectives:functional_left_out",
        3,
        args={"skipping": -1},
        broken=(Broken(SKIPPED, 1, ("all_gather_into_tensor",), args={"skipping": 1}),),
        in_tests=True,
    )
    yield Peer(
        "subgroups and a mesh",
        "collectives:subgroups",
        4,
        broken=(skipped(3, "all_reduce"), collective_dtype(2, "all_gather_into_tensor")),
    )
    yield Peer(
        "two groups",
        "collectives:two_groups",
        3,
        broken=(
            Broken(CROSSED, 2, ("all_reduce",), args={"crossed": 2}),
            Broken(CROSSED, 1, ("all_reduce",), (Break("swap", 1, "all_reduce", 2),)),
        ),
        in_tests=True,
    )
    yield Peer(
        "groups made again",
        "collectives:again",
        3,
        broken=(skipped(1, "all_reduce", 1),),
    )
    yield Peer("called by a non-member", "collectives:not_a_member", 3, in_tests=True)


def _pipelines() -> Iterator[Peer]:
    # Rank 1 of four sends forward for microbatch 0 and 1 before it receives a gradient; rows grow.
    yield Peer(
        "1F1B by hand",
        "megatron:one_f_one_b",
        4,
        broken=(
            send_dropped(1, 2, 0, "send"),
            receive_dropped(1, 0, 0, "recv"),
            swapped(0, 1, 0, "send"),
            dtype(0, 1, 1, "send"),
            skipped(2, "all_reduce"),
        ),
        in_tests=True,
    )
    yield Peer(
        "GPipe by hand",
        "megatron:gpipe",
        3,
        broken=(
            send_dropped(0, 1, 1, "send"),
            receive_dropped(1, 0, 1, "recv"),
            swapped(0, 1, 1, "send"),
            dtype(0, 1, 2, "send"),
        ),
        in_tests=True,
    )
    yield Peer(
        "interleaved by hand",
        "megatron:interleaved",
        2,
        broken=(
            send_dropped(0, 1, 0),
            receive_dropped(1, 0, 0, "recv"),
            swapped(0, 1, 0),
            dtype(0, 1, 1),
        ),
        in_tests=True,
    )
    for name, neighbours in _SCHEDULES:
        # Two messages to each neighbour settle the shapes, then come the activations. All that
        # rank 0 sends at first goes to rank 1; what it takes first comes from the rank before it in
        # the ring, where the stages go round, else from rank 1.
        first = 2 * neighbours
        for ranks in (2, 4):
            before = ranks - 1 if neighbours == _LOOPED else 1
            broken = [
                send_dropped(0, 1, first),
                receive_dropped(0, before, first),
                dtype(0, 1, first),
            ]
            if name != "Schedule1F1B":  # which waits for each before the next
                broken.append(swapped(0, 1, first, unseen=_ALIKE))
            yield Peer(
                f"{name.removeprefix('Schedule')} of torch",
                "pipelines:schedule",
                ranks,
                args={"name": name},
                broken=tuple(broken),
                in_tests=name == "Schedule1F1B" and ranks == 2,
            )


_LOOPED = 3
# Each with the number of neighbours that the stages of rank 0 have.
_SCHEDULES = (
    ("ScheduleGPipe", 1),
    ("Schedule1F1B", 1),
    ("ScheduleInterleaved1F1B", _LOOPED),
    ("ScheduleLoopedBFS", _LOOPED),
    ("ScheduleInterleavedZeroBubble", _LOOPED),
    ("ScheduleZBVZeroBubble", 2),
    ("ScheduleDualPipeV", 2),
)


def _training() -> Iterator[Peer]:
    # The gradients are reduced in backward passes only; the loss is reduced at the end.
    yield Peer(
        "DDP",
        "training:ddp",
        3,
        broken=(
            Broken("a backward pass left out", 1, ("all_reduce",), args={"idle": 1}),
            Broken("a model of another size", 1, args={"wide": 1}, at=("rank",)),
            skipped(2, "all_reduce"),
            collective_dtype(2, "all_reduce"),
        ),
        in_tests=True,
    )
    yield Peer("DDP, gradients kept, uneven inputs", "training:ddp_without_sync", 3)
    for ranks in (2, 4):
        yield Peer(
            "FSDP2",
            "training:fsdp",
            ranks,
            broken=(
                skipped(1, "all_gather_into_tensor", 1),
                skipped(1, "reduce_scatter_tensor", 1),
                collective_dtype(1, "all_gather_into_tensor", 1),
            ),
            in_tests=ranks == 2,
        )
    yield Peer("tensor parallel", "training:tensor_parallel", 2)
    yield Peer(
        "DTensor",
        "training:dtensor",
        4,
        broken=(Broken(SKIPPED, 1, ("world",), args={"left_out": 1}),),
    )


def _parts() -> Iterator[Peer]:
    for name, function, ranks, broken in (
        ("DDP with hooks of its own", "ddp_hooks", 3, ()),
        ("DDP with unused parameters", "ddp_unused", 3, ()),
        ("ZeRO optimizer", "zero", 3, (skipped(1, "broadcast", 1),)),
        ("the first FSDP", "fsdp_first", 2, (skipped(1, "all_gather", 1),)),
        ("FSDP2 over a mesh", "hybrid", 4, (skipped(2, "reduce_scatter_tensor"),)),
        ("a pipeline of DDP", "pipeline_of_ddp", 4, ()),
        ("collectives with gradients", "gradients_through", 3, (skipped(1, "all_reduce"),)),
        ("distributed checkpoints", "checkpoints", 2, (skipped(1, "scatter_object_list"),)),
        ("models averaged now and then", "averaged", 3, (skipped(2, "all_reduce", 1),)),
        ("a time limit that runs out", "limits", 3, (skipped(2, "monitored_barrier"),)),
        ("no goodbye", "no_goodbye", 3, (send_dropped(0, 1, 0, "send"),)),
        ("the world made again", "world_again", 3, (skipped(1, "all_reduce", 1),)),
        ("refused calls", "caught", 3, (skipped(1, "all_reduce", 1),)),
    ):
        yield Peer(name, f"torch_parts:{function}", ranks, broken=broken)


def _threads() -> Iterator[Peer]:
    yield Peer(
        "threads with groups of their own",
        "threads:own_groups",
        3,
        broken=(skipped(1, "all_reduce", 9),),
        in_tests=True,
    )
    yield Peer(
        "a thread sends, one receives, one reduces",
        "threads:producer_consumer",
        3,
        broken=(
            send_dropped(1, 2, 2, "send"),
            receive_dropped(1, 0, 2, "recv"),
            skipped(1, "all_reduce", 2),
            dtype(1, 2, 2, "send"),
        ),
        in_tests=True,
    )


def _libraries() -> Iterator[Peer]:
    yield Peer(
        "FairScale: ShardedDDP and OSS",
        "libraries:sharded_ddp",
        3,
        needs="fairscale",
        broken=(skipped(1, "reduce", 1),),
    )


PEERS: tuple[Peer, ...] = (
    *_messages(),
    *_collectives(),
    *_pipelines(),
    *_training(),
    *_parts(),
    *_threads(),
    *_libraries(),
)
