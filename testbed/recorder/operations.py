"""The operations of ``torch.distributed``, one entry each: every name that leads to one, and what
it does with its tensors. Pure data.

A rank reaches an operation by a public function (``dist.all_reduce``), by a method of the process
group (``pg.allreduce``), or from C++ by a dispatcher operator (``c10d::allreduce_``). All of them
are recorded under the one name of the operation, so that ranks that come by different ways agree.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Form:
    """One operation.

    op: the name it is recorded by. public: functions of ``torch.distributed`` that are this one
    operation. methods: those of ``ProcessGroup``. kernel: its operator in the namespace ``c10d``.
    writes, reads: public parameters whose tensors it writes and reads; methods and operators take
    them in the order of ``tensors``. sized_by: the one whose dtype and size are recorded. root: the
    public parameter that names the root, "" without one. default_root: the root torch takes where
    the caller names none. reduces: it has a reduction, SUM unless another one is given. alike:
    every member brings as much as the others. splits: how it is said what goes to each member and
    comes from each, which is recorded: by the tensors of a list, or by rows of one. way: of a
    message, "" for a collective.
    """

    op: str
    public: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    kernel: str = ""
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    sized_by: str = ""
    root: str = ""
    default_root: int = -1
    reduces: bool = False
    alike: bool = True
    splits: Literal["", "lists", "rows"] = ""
    way: Literal["", "send", "receive"] = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Its tensor parameters, results first."""
        return (*self.writes, *(name for name in self.reads if name not in self.writes))


FORMS: tuple[Form, ...] = (
    Form(
        "all_reduce",
        public=("all_reduce",),
        methods=("allreduce",),
        kernel="allreduce_",
        writes=("tensor",),
        sized_by="tensor",
        reduces=True,
    ),
    Form(
        "all_reduce_coalesced",
        public=("all_reduce_coalesced",),
        methods=("allreduce_coalesced",),
        kernel="allreduce_coalesced_",
        writes=("tensors",),
        sized_by="tensors",
        reduces=True,
    ),
    Form(
        "broadcast",
        public=("broadcast",),
        methods=("broadcast",),
        kernel="broadcast_",
        writes=("tensor",),
        sized_by="tensor",
        root="src",
    ),
    Form(
        "reduce",
        public=("reduce",),
        methods=("reduce",),
        kernel="reduce_",
        writes=("tensor",),
        sized_by="tensor",
        root="dst",
        reduces=True,
    ),
    Form(
        "all_gather",
        public=("all_gather",),
        methods=("allgather",),
        kernel="allgather_",
        writes=("tensor_list",),
        reads=("tensor",),
        sized_by="tensor",
    ),
    Form(
        "all_gather_coalesced",
        public=("all_gather_coalesced",),
        methods=("allgather_coalesced",),
        kernel="allgather_coalesced_",
        writes=("output_tensor_lists",),
        reads=("input_tensor_list",),
        sized_by="input_tensor_list",
    ),
    Form(
        "all_gather_into_tensor",
        public=("all_gather_into_tensor", "all_gather_single"),
        methods=("_allgather_base", "all_gather_single"),
        kernel="_allgather_base_",
        writes=("output_tensor",),
        reads=("input_tensor",),
        sized_by="output_tensor",
    ),
    Form(
        "all_gather_into_tensor_coalesced",
        methods=("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        kernel="allgather_into_tensor_coalesced_",
        writes=("outputs",),
        reads=("inputs",),
        sized_by="outputs",
    ),
    Form(
        "gather",
        public=("gather",),
        methods=("gather",),
        kernel="gather_",
        writes=("gather_list",),
        reads=("tensor",),
        sized_by="tensor",
        root="dst",
        default_root=0,
    ),
    Form(
        "scatter",
        public=("scatter",),
        methods=("scatter",),
        kernel="scatter_",
        writes=("tensor",),
        reads=("scatter_list",),
        sized_by="tensor",
        root="src",
        default_root=0,
    ),
    Form(
        "reduce_scatter",
        public=("reduce_scatter",),
        methods=("reduce_scatter",),
        kernel="reduce_scatter_",
        writes=("output",),
        reads=("input_list",),
        sized_by="output",
        reduces=True,
    ),
    Form(
        "reduce_scatter_tensor",
        public=("reduce_scatter_tensor", "reduce_scatter_single"),
        methods=("_reduce_scatter_base", "reduce_scatter_single"),
        kernel="_reduce_scatter_base_",
        writes=("output",),
        reads=("input",),
        sized_by="output",
        reduces=True,
    ),
    Form(
        "reduce_scatter_tensor_coalesced",
        methods=("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
        kernel="reduce_scatter_tensor_coalesced_",
        writes=("outputs",),
        reads=("inputs",),
        sized_by="outputs",
        reduces=True,
    ),
    Form(
        "all_to_all",
        public=("all_to_all",),
        methods=("alltoall",),
        kernel="alltoall_",
        writes=("output_tensor_list",),
        reads=("input_tensor_list",),
        sized_by="output_tensor_list",
        alike=False,
        splits="lists",
    ),
    Form(
        "all_to_all_single",
        public=("all_to_all_single",),
        methods=("alltoall_base", "all_to_all_single"),
        kernel="alltoall_base_",
        writes=("output",),
        reads=("input",),
        sized_by="output",
        alike=False,
        splits="rows",
    ),
    Form("barrier", public=("barrier",), methods=("barrier",), kernel="barrier"),
    Form(
        "monitored_barrier",
        public=("monitored_barrier",),
        methods=("monitored_barrier",),
        kernel="monitored_barrier_",
    ),
    Form("all_gather_object", public=("all_gather_object",), alike=False),
    Form(
        "broadcast_object_list",
        public=("broadcast_object_list",),
        root="src",
        default_root=0,
        alike=False,
    ),
    Form("gather_object", public=("gather_object",), root="dst", default_root=0, alike=False),
    Form(
        "scatter_object_list",
        public=("scatter_object_list",),
        root="src",
        default_root=0,
        alike=False,
    ),
    Form("send", public=("send",), reads=("tensor",), sized_by="tensor", way="send"),
    Form("recv", public=("recv",), writes=("tensor",), sized_by="tensor", way="receive"),
    # Recorded at the method only: batch_isend_irecv compares the functions with torch's own.
    Form(
        "isend", methods=("send",), kernel="send", reads=("tensor",), sized_by="tensor", way="send"
    ),
    Form(
        "irecv",
        methods=("recv",),
        kernel="recv_",
        writes=("tensor",),
        sized_by="tensor",
        way="receive",
    ),
    Form(
        "irecv",
        methods=("recv_anysource",),
        kernel="recv_any_source_",
        writes=("tensor",),
        sized_by="tensor",
        way="receive",
    ),
)

CALLED_BY_TORCH = ("send", "recv")
"""Public functions that torch's own module calls by name; all others there must stay what torch
compares them with.
"""

NEW_GROUP, SPLIT_GROUP = "new_group", "split_group"
"""Collectives over the members of the group that makes another one."""

OPERATIONS: tuple[str, ...] = tuple(dict.fromkeys(form.op for form in FORMS))
"""The names that operations are recorded by."""
