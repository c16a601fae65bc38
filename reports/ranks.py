"""How reports speak of many ranks."""

from collections.abc import Iterable


def ranged(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0-7, 9``: sixty-four numbers are not for reading."""
    runs: list[list[int]] = []
    ordered = sorted(ranks)
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    told = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' * (len(ordered) != 1)} {', '.join(told)}"
