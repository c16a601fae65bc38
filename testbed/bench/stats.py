"""Quantiles, and ratios with their spread. Pure."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import TypedDict


class Spread(TypedDict):
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of all do not exceed. Not empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of the values, which must not be empty."""
    return Spread(
        median=statistics.median(values), low=quantile(values, 0.25), high=quantile(values, 0.75)
    )


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Of two figures taken side by side, round by round."""
    return spread([one / other for one, other in zip(over, under, strict=True)])


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
