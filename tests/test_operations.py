"""The table of operations names every way that torch has to one, or says why a name is none."""

import inspect
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from testbed.recorder.operations import FORMS

ASKS = "asks or sets something of this process alone"
MAKES = "makes or ends groups: rendezvous through the store, no operation of a group"
RECORDED_ELSEWHERE = "recorded by the function of torch that it comes to"
MADE_OF = "made of other operations, each of which is recorded"

NOT_OPERATIONS = {
    "abort": MAKES,
    "batch_isend_irecv": MADE_OF,
    "breakpoint": MADE_OF,
    "destroy_process_group": MAKES,
    "get_backend": ASKS,
    "get_backend_config": ASKS,
    "get_debug_level": ASKS,
    "get_default_backend_for_device": ASKS,
    "get_global_rank": ASKS,
    "get_group_rank": ASKS,
    "get_node_local_rank": ASKS,
    "get_pg_count": ASKS,
    "get_process_group_ranks": ASKS,
    "get_rank": ASKS,
    "get_world_size": ASKS,
    "init_device_mesh": MADE_OF,
    "init_process_group": MAKES,
    "irecv": RECORDED_ELSEWHERE,
    "is_available": ASKS,
    "is_backend_available": ASKS,
    "is_gloo_available": ASKS,
    "is_initialized": ASKS,
    "is_mpi_available": ASKS,
    "is_nccl_available": ASKS,
    "is_torchelastic_launched": ASKS,
    "is_ucc_available": ASKS,
    "is_xccl_available": ASKS,
    "isend": RECORDED_ELSEWHERE,
    "new_group": RECORDED_ELSEWHERE,
    "new_subgroups": MADE_OF,
    "new_subgroups_by_enumeration": MADE_OF,
    "record_comm": ASKS,
    "recv_object_list": MADE_OF,
    "register_rendezvous_handler": ASKS,
    "rendezvous": MAKES,
    "send_object_list": MADE_OF,
    "set_debug_level": ASKS,
    "set_debug_level_from_env": ASKS,
    "shrink_group": MAKES,
    "split_group": RECORDED_ELSEWHERE,
    "supports_complex": ASKS,
}
"""Public functions of torch.distributed that are no operation, with the reason."""

NOT_METHODS = {
    "abort": MAKES,
    "boxed": ASKS,
    "get_group_store": ASKS,
    "merge_remote_group": MAKES,
    "name": ASKS,
    "rank": ASKS,
    "set_timeout": ASKS,
    "shutdown": MAKES,
    "size": ASKS,
    "split_group": RECORDED_ELSEWHERE,
    "unbox": ASKS,
    "use_pg_for_symm_mem_rendezvous": ASKS,
}
"""Methods of ProcessGroup that are no operation."""

NOT_KERNELS = {"check_for_nan": ASKS}
"""Operators of the dispatcher that are none."""

# Private, and yet other libraries' code calls them.
PRIVATE_METHODS = ("_allgather_base", "_reduce_scatter_base")


def public_functions() -> Iterator[str]:
    for name in {*distributed_c10d.__all__, *vars(dist)}:
        value = getattr(dist, name, None)
        if not name.startswith("_") and inspect.isroutine(value):
            owner = getattr(value, "__module__", "") or ""
            if owner.startswith(("torch.distributed", "torch._C")):
                yield name


def methods() -> Iterator[str]:
    for name in vars(dist.ProcessGroup):
        is_named = name in PRIVATE_METHODS or not name.startswith("_")
        if is_named and inspect.isroutine(getattr(dist.ProcessGroup, name)):
            yield name


def kernels() -> Iterator[str]:
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, op = name.partition("::")
        if namespace == "c10d":
            yield op


def test_every_public_function_is_in_the_table_or_is_no_operation_for_a_stated_reason() -> None:
    known = {name for form in FORMS for name in form.public} | NOT_OPERATIONS.keys()
    assert set(public_functions()) - known == set()


def test_every_method_of_a_group_is_in_the_table_or_is_none_for_a_stated_reason() -> None:
    known = {name for form in FORMS for name in form.methods} | NOT_METHODS.keys()
    assert set(methods()) - known == set()


def test_every_operator_of_the_dispatcher_is_in_the_table() -> None:
    known = {form.kernel for form in FORMS} | NOT_KERNELS.keys()
    assert set(kernels()) - known == set()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.op}-{'-'.join(form.methods)}")
def test_the_table_names_what_is_there(form: object) -> None:
    (found,) = (one for one in FORMS if one is form)
    assert all(hasattr(dist, name) for name in found.public)
    assert all(hasattr(dist.ProcessGroup, name) for name in found.methods)
    assert not found.kernel or hasattr(torch.ops.c10d, found.kernel)
    for name in found.public:
        parameters = inspect.signature(getattr(dist, name)).parameters
        named = [*found.tensors, found.root] if found.root else [*found.tensors]
        assert all(parameter in parameters for parameter in named), name
        assert found.reduces == ("op" in parameters), name
