"""Pipelines as large trainers write them: a function for each way, named apart on both ends.

The microbatches have other numbers of rows each, as with packed sequences; both ends know them.
"""

from typing import Any

import torch
import torch.distributed as dist

from cases.peers.programs.world import digest, gloo

_WIDTH = 3


class _Pipe:
    """One stage's two neighbours."""

    def __init__(self, rank: int, size: int, group: Any = None) -> None:
        self.first, self.last = rank == 0, rank == size - 1
        self._before, self._after = (rank - 1) % size, (rank + 1) % size
        self._group = group

    def recv_forward(self, rows: int) -> torch.Tensor | None:
        if self.first:
            return None
        got = torch.empty(rows, _WIDTH)
        dist.recv(got, self._before, group=self._group)
        return got.requires_grad_()

    def send_forward(self, output: torch.Tensor) -> None:
        if not self.last:
            dist.send(output.detach(), self._after, group=self._group)

    def recv_backward(self, rows: int) -> torch.Tensor | None:
        if self.last:
            return None
        grad = torch.empty(rows, _WIDTH)
        dist.recv(grad, self._after, group=self._group)
        return grad

    def send_backward(self, grad: torch.Tensor | None) -> None:
        if not self.first:
            assert grad is not None
            dist.send(grad, self._before, group=self._group)

    def send_forward_recv_backward(self, output: torch.Tensor, rows: int) -> torch.Tensor | None:
        if self.last:
            return None
        grad = torch.empty(rows, _WIDTH)
        self._batch(
            [
                dist.P2POp(dist.isend, output.detach(), self._after, self._group),
                dist.P2POp(dist.irecv, grad, self._after, self._group),
            ]
        )
        return grad

    def send_backward_recv_forward(self, grad: torch.Tensor | None, rows: int) -> Any:
        if self.first:
            return None
        assert grad is not None
        got = torch.empty(rows, _WIDTH)
        self._batch(
            [
                dist.P2POp(dist.isend, grad, self._before, self._group),
                dist.P2POp(dist.irecv, got, self._before, self._group),
            ]
        )
        return got.requires_grad_()

    @staticmethod
    def _batch(ops: list[dist.P2POp]) -> None:
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def _rows(microbatch: int) -> int:
    return 2 + microbatch


def _input(microbatch: int) -> torch.Tensor:
    rows = _rows(microbatch)
    return torch.arange(rows * _WIDTH, dtype=torch.float32).view(rows, _WIDTH) / 10


class _Stage:
    """A layer, and what waits for its backward pass."""

    def __init__(self, number: int) -> None:
        torch.manual_seed(number)
        self.layer = torch.nn.Linear(_WIDTH, _WIDTH)
        self.loss = torch.zeros(())

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.tanh(self.layer(given))
        return output

    def backward(
        self, given: torch.Tensor, output: torch.Tensor, grad: torch.Tensor | None
    ) -> torch.Tensor | None:
        if grad is None:
            loss = output.square().mean()
            self.loss = self.loss + loss.detach()
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            output.backward(grad)  # type: ignore[no-untyped-call]
        return given.grad


def one_f_one_b(microbatches: int = 6) -> list[float]:
    """Warm-up forwards, then one forward and one backward at a time, then the rest."""
    with gloo() as me:
        pipe, stage = _Pipe(me.rank, me.size), _Stage(me.rank)
        warm = min(me.size - 1 - me.rank, microbatches)
        held: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def forward(number: int, given: torch.Tensor | None) -> torch.Tensor:
            used = _input(number) if given is None else given
            output = stage.forward(used)
            held.append((number, used, output))
            return output

        def backward(grad: torch.Tensor | None) -> torch.Tensor | None:
            _, used, output = held.pop(0)
            return stage.backward(used, output, grad)

        for number in range(warm):
            pipe.send_forward(forward(number, pipe.recv_forward(_rows(number))))
        steady = range(warm, microbatches)
        given = pipe.recv_forward(_rows(warm)) if steady else None
        for number in steady:
            output = forward(number, given)
            grad = pipe.send_forward_recv_backward(output, _rows(held[0][0]))
            passed = backward(grad)
            if number == steady[-1]:
                pipe.send_backward(passed)
            else:
                given = pipe.send_backward_recv_forward(passed, _rows(number + 1))
        for _ in range(warm):
            pipe.send_backward(backward(pipe.recv_backward(_rows(held[0][0]))))
        _reduce_gradients(stage)
        return digest([stage.loss, *(one.grad for one in stage.layer.parameters())])


def gpipe(microbatches: int = 4) -> list[float]:
    """All forwards, then all backwards, each way by functions of its own."""
    with gloo() as me:
        pipe, stage = _Pipe(me.rank, me.size), _Stage(me.rank)
        held = []
        for number in range(microbatches):
            given = pipe.recv_forward(_rows(number))
            used = _input(number) if given is None else given
            output = stage.forward(used)
            pipe.send_forward(output)
            held.append((number, used, output))
        for number, used, output in reversed(held):
            pipe.send_backward(stage.backward(used, output, pipe.recv_backward(_rows(number))))
        return digest([stage.loss, *(one.grad for one in stage.layer.parameters())])


def interleaved(microbatches: int = 4, chunks: int = 2) -> list[float]:
    """Each rank holds several chunks of the model: messages go round the ring, forwards only at
    first, the gradients back the other way.
    """
    with gloo() as me:
        before, after = (me.rank - 1) % me.size, (me.rank + 1) % me.size
        stages = [_Stage(chunk * me.size + me.rank) for chunk in range(chunks)]
        held: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        sending: list[Any] = []
        for start in range(0, microbatches, me.size):
            some = range(start, min(start + me.size, microbatches))
            for chunk in range(chunks):
                for number in some:
                    if me.rank == 0 and chunk == 0:
                        given = _input(number)
                    else:
                        given = _take(before, _rows(number), chunk - (me.rank == 0))
                        given.requires_grad_()
                    output = stages[chunk].forward(given)
                    held[chunk, number] = given, output
                    if not (me.rank == me.size - 1 and chunk == chunks - 1):
                        sending.append(_hand_on(output, after, chunk))
        for start in range(0, microbatches, me.size):
            some = range(start, min(start + me.size, microbatches))
            for chunk in reversed(range(chunks)):
                for number in some:
                    given, output = held.pop((chunk, number))
                    grad = None
                    if not (me.rank == me.size - 1 and chunk == chunks - 1):
                        way = chunk + (me.rank == me.size - 1)
                        grad = _take_back(after, _rows(number), way)
                    passed = stages[chunk].backward(given, output, grad)
                    if not (me.rank == 0 and chunk == 0):
                        assert passed is not None
                        sending.append(_hand_back(passed, before, chunk))
        for work in sending:
            work.wait()
        grads = [one.grad for stage in stages for one in stage.layer.parameters()]
        return digest([stages[-1].loss, *grads])


def _take(source: int, rows: int, way: int) -> torch.Tensor:
    got = torch.empty(rows, _WIDTH)
    dist.recv(got, source, tag=way)
    return got


def _hand_on(output: torch.Tensor, to: int, way: int) -> Any:
    return dist.isend(output.detach(), to, tag=way)


def _take_back(source: int, rows: int, way: int) -> torch.Tensor:
    grad = torch.empty(rows, _WIDTH)
    dist.recv(grad, source, tag=100 + way)
    return grad


def _hand_back(grad: torch.Tensor, to: int, way: int) -> Any:
    return dist.isend(grad, to, tag=100 + way)


def _reduce_gradients(stage: _Stage) -> None:
    """Over all stages, as tied embeddings are."""
    grad = stage.layer.bias.grad
    assert grad is not None
    dist.all_reduce(grad)
