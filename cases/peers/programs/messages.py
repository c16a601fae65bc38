"""Messages: rings, exchanges, receives from anybody, early and late waits, objects."""

from typing import Any

import torch
import torch.distributed as dist

from cases.peers.programs.world import digest, gloo


def batched_ring(rounds: int = 3) -> list[float]:
    """Everybody sends to the next and receives from the one before, as one batch."""
    with gloo() as me:
        held = torch.full((4, 2), float(me.rank))
        for turn in range(rounds):
            got = torch.empty(4 + turn, 2)
            mine = torch.cat([held[:4], torch.ones(turn, 2)])
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, mine, (me.rank + 1) % me.size),
                    dist.P2POp(dist.irecv, got, (me.rank - 1) % me.size),
                ]
            )
            for work in works:
                work.wait()
            held = got * 2
        return digest(held)


def _publish(value: torch.Tensor, me: int, size: int) -> None:
    for follower in range(size):
        if follower != me:
            dist.send(value, follower, tag=3)


def _follow(value: torch.Tensor, leader: int) -> None:
    dist.recv(value, leader, tag=3)


def publish_follow(rounds: int = 4) -> list[float]:
    """One publishes, the others follow: in turn, by two functions."""
    with gloo() as me:
        total = torch.zeros(3)
        for turn in range(rounds):
            leader = turn % me.size
            value = torch.arange(3.0) + turn * 10 + leader
            if me.rank == leader:
                _publish(value, me.rank, me.size)
            else:
                value.zero_()
                _follow(value, leader)
            total += value * (turn + 1)
        return digest(total)


def late_ring(rounds: int = 4) -> list[float]:
    """A ring in which each message is taken one round later than it was sent, by design."""
    with gloo() as me:
        before, after = (me.rank - 1) % me.size, (me.rank + 1) % me.size
        sending: list[Any] = []
        seen = torch.zeros(5)
        for turn in range(rounds):
            sending.append(dist.isend(torch.full((5,), 1.0 + turn + me.rank), after))
            if turn > 0:
                got = torch.empty(5)
                dist.recv(got, before)
                seen += got * turn
        last = torch.empty(5)
        dist.recv(last, before)
        for work in sending:
            work.wait()
        return digest(seen + last)


def from_anybody(jobs: int = 3) -> list[float]:
    """Workers hand in results; rank 0 takes them as they come, and answers each."""
    with gloo() as me:
        if me.rank == 0:
            total = torch.zeros(2)
            for _ in range(jobs * (me.size - 1)):
                got = torch.empty(2)
                who = dist.recv(got)
                total += got * who
                dist.send(torch.tensor([1.0]), who, tag=1)
            return digest(total)
        for job in range(jobs):
            dist.send(torch.tensor([float(job), float(me.rank)]), 0)
            answer = torch.empty(1)
            dist.recv(answer, 0, tag=1)
        return digest(answer)


def early_and_late_waits() -> list[float]:
    """Works waited for at once, at the end, or in the other order."""
    with gloo() as me:
        peers = [rank for rank in range(me.size) if rank != me.rank]
        got = {rank: torch.empty(me.size + rank) for rank in peers}
        receiving = {rank: dist.irecv(got[rank], rank) for rank in peers}
        mine = torch.arange(float(me.size + me.rank))
        sending = [dist.isend(mine, rank) for rank in peers]
        for work in (receiving[peers[-1]], *reversed(sending)):
            assert work is not None
            work.wait()
        for rank in peers[:-1]:
            later = receiving[rank]
            assert later is not None
            later.wait()
        return digest([got[rank] for rank in peers])


def objects() -> list[Any]:
    """Objects as messages and in collectives."""
    with gloo() as me:
        received: list[Any] = [None, None]
        if me.rank == 0:
            dist.send_object_list([{"count": 3}, "text"], dst=1)
        elif me.rank == 1:
            dist.recv_object_list(received, src=0)
        shared: list[Any] = [{"seed": 5} if me.rank == 0 else None]
        dist.broadcast_object_list(shared, src=0)
        everybody: list[Any] = [None] * me.size
        dist.all_gather_object(everybody, ("rank", me.rank))
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, [[n] for n in range(me.size)] if me.rank == 0 else None)
        gathered: list[Any] | None = [None] * me.size if me.rank == 0 else None
        dist.gather_object(mine[0], gathered, dst=0)
        return [received, shared, [list(one) for one in everybody], mine, gathered]


def tags_apart() -> list[float]:
    """Two kinds of message between the same two, told apart by tags and taken the other way."""
    with gloo() as me:
        peer = me.rank ^ 1
        head, body = torch.full((2,), me.rank + 0.5), torch.full((6,), me.rank + 0.25)
        works = [dist.isend(head, peer, tag=1), dist.isend(body, peer, tag=2)]
        got_head, got_body = torch.empty(2), torch.empty(6)
        dist.recv(got_body, peer, tag=2)
        dist.recv(got_head, peer, tag=1)
        for work in works:
            assert work is not None
            work.wait()
        return digest([got_head, got_body])
