"""A prefetch that is complete everywhere and never over: no scheduler would admit its request."""

from collections.abc import Iterator
from typing import NamedTuple

from testbed.analysis.view import View

_CHECK = "prefetch-check"


class Waiting(NamedTuple):
    """A prefetch that waited too long. since: the first step in which every rank asked about it and
    had all its pages. told: the last one in a row in which every rank heard that it is under way.
    """

    key: str
    since: int
    told: int


def overdue(view: View) -> Iterator[Waiting]:
    """Prefetches whose pages had all come on every rank, and that for more than ``progress_within``
    steps from then on every rank asked about in vain, whatever the stop policy.

    One rank without the pages, or that does not ask, is enough for nothing to be said: the stage
    that leads may be the one that waits.
    """
    for key, complete in _complete(view).items():
        in_vain = [step for step in view.steps if _all_told_to_wait(view, key, step)]
        since = next((step for step in in_vain if step >= complete), None)
        if since is None:
            continue
        told = since
        while told + 1 in in_vain:
            told += 1
        if told + 1 - since > view.scenario.progress_within:
            yield Waiting(key, since, told)


def _complete(view: View) -> dict[str, int]:
    """Request -> the step in which the last rank had all pages of its prefetch."""
    come = [
        {key: step for step, share in rank.steps.items() for key in share.arrived}
        for rank in view.ranks.values()
    ]
    everywhere = set.intersection(*map(set, come)) if come else set()
    return {key: max(of_rank[key] for of_rank in come) for key in sorted(everywhere)}


def _all_told_to_wait(view: View, key: str, step: int) -> bool:
    heard = [
        [one.answer for one in rank.at(step).answers if (one.call, one.key) == (_CHECK, key)]
        for rank in view.ranks.values()
    ]
    return all(answers and answers[-1] == "no" for answers in heard)
