"""The schedules of ``torch.distributed.pipelining``."""

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from cases.peers.programs.world import digest, gloo

_WIDTH = 4
_SINGLE = ("ScheduleGPipe", "Schedule1F1B")
_V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")


class _Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(self.linear(given))
        return out


def schedule(name: str, microbatches: int = 8, steps: int = 2) -> list[float]:
    """Train with that schedule; two stages a rank where it has several."""
    with gloo() as me:
        per_rank = 1 if name in _SINGLE else 2
        total = per_rank * me.size
        if name in _V_SHAPED:
            mine = [me.rank, total - 1 - me.rank]
        else:
            mine = [me.rank + chunk * me.size for chunk in range(per_rank)]
        device = torch.device("cpu")
        stages = [PipelineStage(_Layer(number), number, total, device) for number in mine]
        kind = getattr(schedules, name)
        given = stages[0] if name in _SINGLE else stages
        running = kind(given, microbatches, loss_fn=lambda out, aim: (out - aim).square().mean())
        told = []
        for step in range(steps):
            torch.manual_seed(50 + step)
            whole, aim = torch.randn(2, microbatches * 2, _WIDTH).unbind()
            losses: list[torch.Tensor] = []
            first = (whole,) if 0 in mine else ()
            last = {"target": aim, "losses": losses} if total - 1 in mine else {}
            running.step(*first, **last)
            told += digest(losses)
        return told + digest([one.grad for stage in stages for one in stage.submod.parameters()])
