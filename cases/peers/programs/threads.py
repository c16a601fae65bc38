"""Several threads a rank, each with a group of its own."""

import threading
from typing import Any

import torch
import torch.distributed as dist

from cases.peers.programs.world import digest, gloo


def _in_threads(works: list[Any]) -> None:
    failed: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- raised again by the main thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def own_groups(rounds: int = 20, threads: int = 3) -> list[float]:
    """Each thread reduces over its group, at its own pace; the main thread does as well."""
    with gloo() as me:
        members = list(range(me.size))
        groups = [dist.new_group(members) for _ in range(threads)]
        values = [torch.full((2,), float(me.rank + n)) for n in range(threads)]

        def work(number: int) -> None:
            for _ in range(rounds):
                dist.all_reduce(values[number], op=dist.ReduceOp.MAX, group=groups[number])
                values[number] += number + 1

        main = torch.full((2,), float(me.rank))

        def on_top() -> None:
            for _ in range(rounds):
                dist.all_reduce(main, op=dist.ReduceOp.MIN)

        starting = [lambda n=n: work(n) for n in range(threads)]
        _in_threads([*starting, on_top])
        return digest([*values, main])


def producer_consumer(items: int = 6) -> list[float]:
    """One thread sends, one receives, over two groups, while the main thread reduces."""
    with gloo() as me:
        members = list(range(me.size))
        down, control = dist.new_group(members), dist.new_group(members)
        got = torch.zeros(items, 3)

        def sends() -> None:
            for number in range(items):
                dist.send(torch.full((3,), me.rank * 10.0 + number), (me.rank + 1) % me.size, down)

        def receives() -> None:
            for number in range(items):
                dist.recv(got[number], (me.rank - 1) % me.size, down)

        flag = torch.tensor([me.rank])

        def reduces() -> None:
            for _ in range(items):
                dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=control)

        _in_threads([sends, receives, reduces])
        return digest([got, flag])
