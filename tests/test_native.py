"""Operations that C++ code starts are recorded, and so are the waits for them that can be seen."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from testbed.fleet import Fleet
from testbed.model.events import Enter, Measured
from testbed.programs import HOSTS
from testbed.programs.plan import Plan, scenario_of


def trained() -> list[float]:
    """DDP, a functional collective and a DTensor; what the last two give."""
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo")
    group: Any = dist.group.WORLD
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    biggest = functional.all_reduce(torch.tensor([float(dist.get_rank())]), "max", group) + 0
    mesh = init_device_mesh("cpu", (2,))
    whole = distribute_tensor(torch.ones(2), mesh, [Shard(0)]).full_tensor()
    del model
    dist.barrier()
    return [*biggest.tolist(), *whole.tolist()]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(2, hosts=HOSTS) as made:
        yield made


def run(fleet: Fleet, program: str) -> tuple[list[Enter], Any]:
    """What rank 0 entered, and what the program returned there."""
    record = fleet.run(scenario_of(f"{__name__}:{program}", 2, Plan()))
    assert record.ended == "finished"
    events = record.ranks[0].events
    (result,) = (event for event in events if isinstance(event, Measured))
    return [event for event in events if isinstance(event, Enter)], result.figures["value"]


def test_ddp_functional_collectives_and_dtensor_are_recorded_with_their_waits(fleet: Fleet) -> None:
    entered, result = run(fleet, "trained")
    assert result == [1.0, 1.0, 1.0]
    ops = [(event.op, event.reduce_op) for event in entered]
    assert ops.count(("all_reduce", "")) == 1  # of DDP's reducer, which does not say how it reduces
    at = ops.index(("all_reduce", "MAX"))
    assert ops[at + 1] == ("wait_all_reduce", "MAX")
    assert ("scatter", "") in ops
    assert ("wait_all_gather_into_tensor_coalesced", "") in ops
    assert [event.ordinal for event in entered if not event.op.startswith("wait")] == [
        *range(sum(not event.op.startswith("wait") for event in entered))
    ]
