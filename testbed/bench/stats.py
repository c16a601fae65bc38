"""Quantiles, and ratios with their spread. Pure."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import TypedDict


class Spread(TypedDict):
    """A median, the quartiles around it, and what the median lies between (see ``bounds``), None
    where there are too few values to say.
    """

    median: float
    low: float
    high: float
    bounds: tuple[float, float] | None


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of all do not exceed. Not empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of the values, which must not be empty."""
    return Spread(
        median=statistics.median(values),
        low=quantile(values, 0.25),
        high=quantile(values, 0.75),
        bounds=bounds(values),
    )


def bounds(values: Sequence[float], sure: float = 0.95) -> tuple[float, float] | None:
    """What the median of all that could be measured lies between, with that probability: two of the
    values as far from both ends, whatever their distribution. None of fewer than six: between the
    smallest and the largest of five it lies with 94 %.
    """
    ordered, count = sorted(values), len(values)
    left_out, outside = 0, 0.5**count
    if 2 * outside > 1 - sure:
        return None
    while 2 * (outside + math.comb(count, left_out + 1) * 0.5**count) <= 1 - sure:
        left_out += 1
        outside += math.comb(count, left_out) * 0.5**count
    return ordered[left_out], ordered[count - 1 - left_out]


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Of two figures taken side by side, round by round."""
    return spread([one / other for one, other in zip(over, under, strict=True)])


def falling(values: Sequence[float]) -> list[float]:
    """The values as they would be if none were above the one before it: neighbours that contradict
    each other are replaced by their mean, which is the closest such curve (least squares).
    """
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and statistics.fmean(pools[-1]) > statistics.fmean(pools[-2]):
            last = pools.pop()
            pools[-1] += last
    return [statistics.fmean(pool) for pool in pools for _ in pool]


def crossing(xs: Sequence[float], ys: Sequence[float], target: float) -> float | None:
    """The x at which a curve that falls with x passes ``target``: between its points in a straight
    line over log x (over x from a point at 0). None if it does not. xs rise.
    """
    points = list(zip(xs, ys, strict=True))
    for (left, above), (right, below) in itertools.pairwise(points):
        if above >= target > below:
            share = (above - target) / (above - below)
            if left > 0:
                return float(left * (right / left) ** share)
            return float(left + (right - left) * share)
    return None
