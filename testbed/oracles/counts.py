"""Numbers of a run that people compare: operations, bytes, queries, stalls. No judgement."""

from typing import Any

from testbed.analysis.view import RankView, View

_ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}


def counts(view: View) -> dict[str, Any]:
    """Totals over all ranks, and sync operations (collectives, sends, receives) a step. The model's
    traffic is left out.

    sync_per_step: on the busiest rank. sync_per_step_leader / _follower: mean over those ranks.
    bytes: what collectives were given and messages carried, as sent. stall_steps: steps by which
    ``synchronize()`` came too early, summed; max_stall: the largest one.
    """
    ranks = list(view.ranks.values())
    ops = [op for rank in ranks for op in rank.ops if not op.is_model]
    stalls = [
        sync.stall
        for rank in ranks
        for share in rank.steps.values()
        for sync in share.syncs
        if sync.stall > 0
    ]
    carried = (op.enter for op in ops if op.is_collective or op.is_send)
    leaders = set(view.topology.leaders)
    rates = {rank.rank: _rate(rank) for rank in ranks}
    return {
        "sync_per_step": round(max(rates.values(), default=0.0), 2),
        "sync_per_step_leader": _mean([rate for r, rate in rates.items() if r in leaders]),
        "sync_per_step_follower": _mean([rate for r, rate in rates.items() if r not in leaders]),
        "all_reduce": sum(op.enter.op == "all_reduce" for op in ops),
        "sends": sum(op.is_send for op in ops),
        "recvs": sum(op.is_recv for op in ops),
        "bytes": sum(enter.numel * _ITEM_BYTES.get(enter.dtype, 0) for enter in carried),
        "queries": sum(
            len(share.queries) + len(share.asked) for rank in ranks for share in rank.steps.values()
        ),
        "stall_steps": sum(stalls),
        "max_stall": max(stalls, default=0),
    }


def _rate(rank: RankView) -> float:
    steps = sum(share.begin is not None for share in rank.steps.values())
    entered = sum(not (op.is_wait or op.is_model) and op.has_step for op in rank.ops)
    return entered / steps if steps else 0.0


def _mean(rates: list[float]) -> float:
    return round(sum(rates) / len(rates), 2) if rates else 0.0
