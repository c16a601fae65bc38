"""progress: what is ready on every rank is completed within the stated number of steps.

Its findings are ``degraded``, not violations: nothing is lost and the ranks agree, work just waits.
But once every fault of the scenario is over, there is nothing left to wait for: work that is ready
on every rank and still starves is a ``violation``, of a protocol that is safe and does not recover.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.analysis.sides import named, singled_out
from testbed.analysis.view import QUEUES, RankView, View, acks
from testbed.model.verdict import Finding, Outcome
from testbed.oracles import prefetch_progress, storage_progress

NAME = "progress"

_NEVER = ("never", "error")
_KEPT = {
    "write": "its lock and its host pages are",
    "load": "its locks and its device pages are",
    "backup": "the host lock of its node is",
    "release": "a host page is",
}


@dataclass
class Life:
    """One ACK on one rank. ready: first step that began with it, and all before it, ready.
    completed: the step of its completion. hopeless: left unready by an event that will never
    fire."""

    ready: int | None = None
    completed: int | None = None
    left: bool = False
    hopeless: bool = False


class Place(NamedTuple):
    """An ACK over all ranks: its key, and the how-manieth transfer of that key it is (from 0)."""

    key: str
    nth: int


class Overdue(NamedTuple):
    """Work that waited too long. blocking: ranks that never have it ready; none: it starved."""

    place: Place
    since: int
    waiting: tuple[int, ...]
    blocking: dict[int, str]
    completed: int | None


def check(view: View) -> Iterable[Finding]:
    """No ACK waits ready for more than ``progress_within`` steps, and no storage item lies longer
    than that, on all ranks of a stage or on some alone; no prefetch that is complete on every rank
    is asked about in vain for longer than that.

    An ACK or a storage item that some ranks alone have can never be completed: its lock and its
    host pages are kept for good. That too is ``degraded``, for it is what a sound protocol must do:
    to complete it there would set the ranks apart. The finding says what is lost.

    What starves although the last fault ended more than ``progress_within`` steps before the run is
    a violation, told for the step from which on it could have been completed.

    A transfer that some rank will have ready only later (its event is scripted for a later step,
    or in milliseconds) keeps nobody waiting: the run is just too short to tell. Judged on
    finished runs only; otherwise the reason why the run ended is what matters.
    """
    if not view.all_done:
        return
    for queue in QUEUES:
        yield from _acks_left(view, queue)
    for items in storage_progress.lying(view):
        yield _item_finding(items)
    for waiting in prefetch_progress.overdue(view):
        yield _prefetch_finding(waiting, list(view.ranks))


def _acks_left(view: View, queue: str) -> Iterator[Finding]:
    lives = {rank.rank: _lives(rank, queue) for rank in view.ranks.values()}
    places = dict.fromkeys(place for of_rank in lives.values() for place in of_rank)
    overdue = [
        found
        for place in places
        if (found := _overdue(view, place, {rank: own.get(place) for rank, own in lives.items()}))
    ]
    starved = [one for one in overdue if not one.blocking]
    held_back = [one for one in overdue if one.blocking]
    healed = _healed(view)
    lost = [one for one in starved if healed is not None and _due(view, one, healed)]
    if lost and healed is not None:
        yield _unrecovered(_finding(queue, lost), healed)
    for several in ([one for one in starved if one not in lost], held_back):
        if several:
            yield _finding(queue, several)


def _healed(view: View) -> int | None:
    """First step in which no fault holds any more; None if one does to the end, or without any."""
    ends: list[int] = []
    for fault in view.scenario.faults:
        if fault.get("until_step") is None:
            return None
        ends.append(fault["until_step"])
    return max(ends, default=None)


def _due(view: View, starved: Overdue, healed: int) -> bool:
    from_on = max(starved.since, healed)
    return starved.completed is None and (
        view.scenario.steps - from_on > view.scenario.progress_within
    )


def _unrecovered(finding: Finding, healed: int) -> Finding:
    assert finding.divergence is not None
    step = max(finding.step, healed)
    return replace(
        finding,
        outcome=Outcome.VIOLATION,
        step=step,
        summary=f"{finding.summary}, though the last fault ended with step {healed - 1}",
        divergence=replace(finding.divergence, step=step),
    )


def _lives(rank: RankView, queue: str) -> dict[Place, Life]:
    lives: dict[Place, Life] = {}
    current: dict[str, Place] = {}
    times: dict[str, int] = {}
    for step, share in rank.steps.items():
        reached = True
        for key, ready in acks(share.begin, queue) if share.begin else ():
            name = str(key)
            if name not in current:
                times[name] = times.get(name, -1) + 1
                current[name] = Place(name, times[name])
                lives[current[name]] = Life()
            reached = reached and bool(ready)
            life = lives[current[name]]
            if reached and life.ready is None:
                life.ready = step
        for name in share.completed(queue):
            if name in current:
                lives[current.pop(name)].completed = step
    _mark_left(rank, queue, lives, current)
    return lives


def _mark_left(
    rank: RankView, queue: str, lives: dict[Place, Life], current: dict[str, Place]
) -> None:
    """Tell what the last step left in the queue, and what of it no later step could bring."""
    script = {start.key: start.ready for start in rank.starts() if start.queue == queue}
    ends = [share.end for _, share in rank.ended_steps() if share.end is not None]
    hopeless = False
    for key in (ends[-1].write if queue == "write" else ends[-1].load) if ends else ():
        if key not in current:
            continue
        life = lives[current[key]]
        hopeless = hopeless or (life.ready is None and script.get(key, "never") in _NEVER)
        life.left = True
        life.hopeless = hopeless and life.ready is None


def _overdue(view: View, place: Place, lives: dict[int, Life | None]) -> Overdue | None:
    within = view.scenario.progress_within
    horizon = view.scenario.steps
    waiting = {
        rank: life.ready
        for rank, life in lives.items()
        if life is not None
        and life.left
        and life.ready is not None
        and horizon - life.ready > within
    }
    if not waiting:
        return _late(place, lives, within)
    blocking: dict[int, str] = {}
    later = False
    for rank, life in lives.items():
        if life is None:
            blocking[rank] = f"no ACK of {place.key}"
        elif life.hopeless:
            blocking[rank] = f"{place.key}, or one before it, has an event that never fires"
        elif life.left and rank not in waiting:
            later = True
    if later and not blocking:
        return None
    return Overdue(place, max(waiting.values()), tuple(waiting), blocking, None)


def _late(place: Place, lives: dict[int, Life | None], within: int) -> Overdue | None:
    """Completed after all, but later than it had to be."""
    known = [life for life in lives.values() if life is not None]
    readies = [life.ready for life in known if life.ready is not None]
    completed = [life.completed for life in known if life.completed is not None]
    if len(readies) < len(lives) or not completed or max(completed) - max(readies) <= within:
        return None
    return Overdue(place, max(readies), tuple(lives), {}, max(completed))


def _finding(queue: str, overdue: list[Overdue]) -> Finding:
    first = min(overdue, key=lambda one: one.since)
    key, more = first.place.key, len(overdue) - 1
    did = dict.fromkeys(first.waiting, f"has {key} ready and not completed") | first.blocking
    if first.blocking:
        reasons = "; ".join(_by_reason(first.blocking))
        ready = f"ready on {named(first.waiting)} since step {first.since}"
        text = f"{key} is held back, {ready}: {reasons}{_kept(queue)}"
        odd = tuple(first.blocking)
    elif first.completed is not None:
        text = (
            f"{key} was ready on every rank in step {first.since}, "
            f"completed in step {first.completed}"
        )
        odd = first.waiting
    else:
        text = f"{key} starves: ready on every rank since step {first.since}, never completed"
        odd = first.waiting
    summary = f"{queue}: {text}" + (f" (and {more} more)" if more else "")
    divergence = singled_out(first.since, queue, did, odd)
    return Finding(NAME, Outcome.DEGRADED, first.since, odd, summary, divergence)


def _by_reason(blocking: dict[int, str]) -> Iterator[str]:
    for reason in dict.fromkeys(blocking.values()):
        yield f"{reason} on {named([rank for rank, own in blocking.items() if own == reason])}"


def _item_finding(items: storage_progress.Lying) -> Finding:
    queue, since, holding = items.queue, items.since, items.holding
    did = {rank: f"holds {_counted(count)}, takes none" for rank, count in holding.items()}
    counts = list(holding.values())
    told = ", ".join(
        f"{named([rank for rank, own in holding.items() if own == count])} "
        f"{'holds' if counts.count(count) == 1 else 'hold'} {_counted(count)}"
        for count in dict.fromkeys(counts)
    )
    summary = f"{queue}: {told} since step {since}, and none is taken"
    if items.lacking:
        summary += f": {'; '.join(_by_rank(items.lacking))}{_kept(queue)}"
    odd = tuple(items.lacking) or tuple(holding)
    divergence = singled_out(since, queue, did | items.lacking, odd)
    return Finding(NAME, Outcome.DEGRADED, since, odd, summary, divergence)


def _counted(items: int) -> str:
    return f"{items} item{'s' * (items != 1)}"


def _by_rank(reasons: dict[int, str]) -> Iterator[str]:
    for reason in dict.fromkeys(reasons.values()):
        yield f"{named([rank for rank, own in reasons.items() if own == reason])} {reason}"


def _kept(queue: str) -> str:
    """What work of that queue holds on to until it is completed, whatever became of it since."""
    kept = "a page of the pool is" if queue.startswith("sidecar:") else _KEPT.get(queue)
    return f"; {kept} kept for good" if kept else ""


def _prefetch_finding(waiting: prefetch_progress.Waiting, ranks: list[int]) -> Finding:
    key, since, told = waiting
    did = dict.fromkeys(ranks, f"has all pages of {key}, heard that it is under way")
    summary = (
        f"prefetch-check: {key} starves: complete on every rank in step {since}, "
        f"said to be under way up to step {told}"
    )
    divergence = singled_out(since, "prefetch-check", did, ranks)
    return Finding(NAME, Outcome.DEGRADED, since, tuple(ranks), summary, divergence)
