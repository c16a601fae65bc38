"""The story of one recorded run, for somebody who sees it for the first time and is tired.

Verdict, where it began, what the odd rank did just before, which injected fault or scripted call
may be behind it, what it led to, and the command that replays it, in that order: about ten lines.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from reports.results import row
from testbed.analysis import standing
from testbed.analysis.logical_time import channel
from testbed.analysis.sides import named
from testbed.analysis.view import Op, RankStep, RankView, View
from testbed.model.errors import printable
from testbed.model.events import Answer, Call, Complete, Enter, Event, Exit, Frame, Query
from testbed.model.record import left_behind
from testbed.model.verdict import Divergence, Outcome
from testbed.oracles.endings import is_echo
from testbed.oracles.injected import injected
from testbed.oracles.judge import INJECTED, SCRIPTED
from testbed.oracles.scripted import scripted
from testbed.sessions.result import RunResult

_INDENT = 14
_WIDTH = 100
_LINE_LIMIT = 180
# What is left out must be worth the gap.
_SPARED = 60
_FRAMES = 2
_NOTES = 3
_STACKS = 3
_DIRECT = 2
_FEW = 3

_COLLATERAL, _BEHIND, _ECHO = ": collateral", ": stuck behind", " lost its connection "
# Verdicts in which all but the roots merely stand where the roots have left them.
_STOOD_STILL = (Outcome.CRASH, Outcome.HANG)


def story(result: RunResult, *, full: bool = False) -> str:
    """The whole story, several lines, no trailing newline. full: whole tracebacks and stacks, and
    every consequence.
    """
    view = View(result.record)
    first = result.verdict.first_divergence
    lines = [*_headline(result), ""]
    if first is None:
        lines += _field("", f"Nothing diverged: {result.verdict.summary}.")
    else:
        lines += [*_beginning(result, first), *_before(view, first), *_cause(view, first)]
    if result.verdict.outcome in _STOOD_STILL and not full:
        lines += _left_standing(view, result.verdict.ranks)
    lines += [*_consequences(result, full), *_traces(view, result, full), ""]
    lines.append(f"replay it: {row(result)['replay']}")
    return printable("\n".join(lines))


# The verdict


def _headline(result: RunResult) -> Iterator[str]:
    verdict, scenario = result.verdict, result.scenario
    words = [str(verdict.outcome)]
    if verdict.oracle:
        words.append(f"by {verdict.oracle}")
    if verdict.step is not None:
        words.append(f"at step {verdict.step}")
    why_not = f"not as expected: {result.why_not}"
    yield f"{' '.join(words)}, {'as expected' if result.as_expected else why_not}"
    yield f"  {scenario.case_id}, {scenario.steps} steps, {result.record.wall_ms:.0f} ms"
    yield from textwrap.wrap(scenario.comment, _WIDTH - 2, initial_indent="  ")[:1]


# Where it began


def _beginning(result: RunResult, first: Divergence) -> Iterator[str]:
    yield from _field("it began at", first.where().removesuffix(", rank"))
    few, many = first.minority, first.majority
    stood_still = result.verdict.outcome in _STOOD_STILL
    for side in first.sides()[: _roots_sides(first) if stood_still else None]:
        yield from _field("", _short(side))
    if few and many and not stood_still:
        even = f" and {named(many)}: {first.no_majority}" if first.even else ""
        yield from _field("look at", named(few) + even)


def _roots_sides(first: Divergence) -> int:
    """How many of the sides are the minority's: they come first."""
    return len({first.did[str(rank)] for rank in first.minority}) or len(first.did)


def _before(view: View, first: Divergence) -> Iterator[str]:
    """The step of the divergence, as the first of the odd ranks saw it, up to where it stands."""
    ranks = [view.ranks[rank] for rank in first.minority if rank in view.ranks]
    for rank in ranks[:1]:
        did = list(_told_step(rank, first))
        if did:
            yield from _field("before that", f"rank {rank.rank} {'; '.join(did)}")


def _told_step(rank: RankView, first: Divergence) -> Iterator[str]:
    share = rank.at(first.step)
    if share.begin is not None:
        yield f"began step {first.step} with {', '.join(_held(share)) or 'empty queues'}"
    for called, events in _by_call(_until(rank, share, first)).items():
        exits = sum(isinstance(event, Exit) for event in events)
        passed = [op for op in share.ops if op.called == called and op.returned is not None]
        did = list(_told_events(events, passed[:exits]))
        if called:
            yield f"the loop called {called}{': ' if did else ''}{', '.join(did)}"
        else:
            yield from did


def _by_call(events: Iterable[Event]) -> dict[str, list[Event]]:
    """The events of the check under "", then those of each call of the loop's besides it."""
    called = ""
    shares: dict[str, list[Event]] = {}
    for event in events:
        if isinstance(event, Call):
            called = event.call
        elif isinstance(event, Answer):
            called = ""
        shares.setdefault(called, []).append(event)
    return shares


def _told_events(events: list[Event], passed: list[Op]) -> Iterator[str]:
    found = [
        f"{event.key} {'ready' if event.ready else 'not ready'}"
        for event in events
        if isinstance(event, Query)
    ]
    if found:
        yield f"found {_few(found)}"
    ops = [_told_op(op) for op in passed if not op.is_wait]
    if ops:
        yield _few(ops)
    done = [event.key for event in events if isinstance(event, Complete)]
    if done:
        yield f"completed {_few(done)}"


def _until(rank: RankView, share: RankStep, first: Divergence) -> Iterator[Event]:
    """The rank's events of that step, before the operation in which it diverged."""
    ops = iter(share.ops)
    for event in rank.record.events:
        # Other threads have no step: what they did is no part of the story of one.
        if event.step != first.step or (isinstance(event, Enter | Exit) and event.thread):
            continue
        if isinstance(event, Enter):
            op = next(ops)
            if not op.is_wait and (str(channel(op)), op.enter.ordinal) == (
                first.channel,
                first.ordinal,
            ):
                return
        yield event


def _held(share: RankStep) -> Iterator[str]:
    assert share.begin is not None
    for queue, acks in (("writes", share.begin.write), ("loads", share.begin.load)):
        if acks:
            told = [f"{key}{'' if ready else ' (not ready)'}" for key, ready in acks]
            yield f"{queue} {_few(told)}"
    for queue, size in share.begin.storage.items():
        if size:
            yield f"{size} in {queue}"


def _told_op(op: Op) -> str:
    enter = op.enter
    name = f"{enter.op} #{enter.ordinal} of {enter.group}"
    if op.is_send:
        return f"sent {enter.values or 'a message'} to rank {enter.peer} ({name})"
    if op.is_recv:
        return f"received {op.returned or 'a message'} from rank {enter.peer} ({name})"
    if enter.values:
        return f"put {enter.values} into {name} and got {op.returned}"
    return f"took part in {name}"


# Why, and what came of it


def _cause(view: View, first: Divergence) -> Iterator[str]:
    faults = injected(view, first)
    for one in faults[:_NOTES]:
        side = "" if one.odd else " (on the other side)"
        yield from _field("injected", one.told() + side)
    if view.scenario.faults and not faults:
        yield from _field("injected", "no fault had taken effect by then")
    for call in scripted(view, first)[:_NOTES]:
        yield from _field("scripted", call.told())


def _left_standing(view: View, roots: tuple[int, ...]) -> Iterator[str]:
    """Who waits for the roots themselves, or lost its connection to them; and, as one, who is
    stuck behind those.
    """
    left = [rank for rank in view.ranks.values() if rank.final is None and rank.rank not in roots]
    direct = [rank for rank in left if set(roots).intersection(standing.waits_for(view, rank))]
    lost = [rank.rank for rank in left if is_echo(rank)]
    behind = [rank.rank for rank in left if rank not in direct and rank.rank not in lost]
    shown = [rank for rank in direct if rank.rank not in lost]
    for rank in shown[:_DIRECT]:
        yield from _field("then", f"rank {rank.rank} {standing.told(view, rank)}")
    behind += [rank.rank for rank in shown[_DIRECT:]]
    for ranks, came_to in ((lost, "collateral, their peer was gone"), (behind, "stuck behind")):
        if ranks:
            yield from _field("then", f"{named(sorted(ranks))}: {came_to}")


def _consequences(result: RunResult, full: bool) -> Iterator[str]:
    verdict = result.verdict
    if verdict.outcome in (Outcome.DEADLOCK, Outcome.ERROR):
        yield from _argument(str(verdict.outcome), verdict.summary)
    elif not _told_already(result):
        yield from _field("broken", _short(verdict.summary))
    for left in left_behind(result.record):
        yield from _field("also", left)
    notes = [note for note in verdict.notes if not note.startswith((INJECTED, SCRIPTED))]
    if not full:
        notes = list(_condensed(notes, verdict.outcome))
    for note in notes if full else notes[:_NOTES]:
        if note.startswith("then deadlock: "):
            yield from _argument("then", note.removeprefix("then "))
        else:
            yield from _field("then", note if full else _short(note.removeprefix("then ")))
    if not full and len(notes) > _NOTES:
        yield from _field("", f"and {len(notes) - _NOTES} more (--full shows them)")


def _argument(name: str, summary: str) -> Iterator[str]:
    """A deadlock is an argument, what holds the ranks first: one line a wait."""
    held, _, _ = summary.partition("; stuck behind: ")  # told by the notes
    for place, part in enumerate(held.split("; ")):
        yield from _field("" if place else name, part)


def _told_already(result: RunResult) -> bool:
    """Whether the first divergence says all that the summary does."""
    verdict = result.verdict
    first = verdict.first_divergence
    if verdict.outcome is Outcome.VIOLATION:
        return first is not None and all(did in verdict.summary for did in first.did.values())
    return verdict.outcome in (Outcome.HANG, Outcome.CRASH, Outcome.OK)


def _condensed(notes: list[str], outcome: Outcome) -> Iterator[str]:
    """Ranks that only followed as one line each for those stuck and those that lost their peer,
    unless ``_left_standing`` has told of them.
    """
    followed = [note for note in notes if note.endswith((_COLLATERAL, _BEHIND))]
    echoes = [note for note in followed if _ECHO in note]
    behind = [note for note in followed if _ECHO not in note]
    for note in notes:
        if note not in followed and not (outcome is Outcome.HANG and note.startswith("rank ")):
            yield note
    if outcome in _STOOD_STILL:
        return
    for followers, told in ((echoes, "collateral, their peer was gone"), (behind, "stuck behind")):
        if followers:
            yield f"{named([int(note.split()[1]) for note in followers])}: {told}"


def _traces(view: View, result: RunResult, full: bool) -> Iterator[str]:
    """The root's traceback, and the stacks of ranks that were stopped at the deadline."""
    roots = [view.ranks[rank] for rank in result.verdict.ranks if rank in view.ranks]
    raised = [rank for rank in roots if rank.raised is not None and rank.record.exit == "raised"]
    for rank in raised[:1]:
        assert rank.raised is not None
        told = f"rank {rank.rank}, {rank.raised.type}"
        raised_at = rank.raised.frames
        yield from _trace("traceback", told, rank.raised.traceback, full, raised_at)
    if raised or not (full or result.record.ended == "deadline"):
        return
    everyone = view.ranks.values() if full else roots
    stopped = [rank for rank in everyone if rank.record.stack and not rank.done]
    for rank in stopped if full else stopped[:_STACKS]:
        called = "" if full else _called(rank)
        if called:
            yield from _field("stack", f"rank {rank.rank}: {called}")
        else:
            stood_at = rank.record.frames
            yield from _trace("stack", f"rank {rank.rank}", rank.record.stack, full, stood_at)


def _called(rank: RankView) -> str:
    """Of a rank that was in an operation: who called it. Its stack may be of a moment later, when
    the peers that were stopped before it had cut its connections.
    """
    if not isinstance(rank.standing, Op) or not rank.standing.enter.caller:
        return ""
    inner, *outer = rank.standing.enter.caller.split(">")[::-1]
    site = rank.standing.enter.site
    return " < ".join([f"{inner} ({site})" if site else inner, *outer[: _FRAMES - 1]])


def _trace(name: str, title: str, text: str, full: bool, frames: Sequence[Frame]) -> Iterator[str]:
    """A traceback or a dump of a stack; shortened: where it stood in the subject's code, on one
    line. frames: what is in it, innermost first; none in older records.
    """
    if full:
        yield from ["", f"{name} of {title}:", textwrap.indent(text.rstrip(), "  ")]
        return
    every = [Frame(*frame) for frame in frames]
    found = [frame for frame in every if frame.is_subjects] or every
    told = " < ".join(f"{frame.function} ({frame.site})" for frame in found[:_FRAMES])
    yield from _field(name, f"{title}: {told}")


def _few(told: list[str]) -> str:
    more = f" and {len(told) - _FEW} more" if len(told) > _FEW else ""
    return ", ".join(told[:_FEW]) + more


def _short(text: str) -> str:
    if len(text) <= _LINE_LIMIT + _SPARED:
        return text
    return f"{text[: _LINE_LIMIT // 2].rstrip()} … {text[-_LINE_LIMIT // 2 :].lstrip()}"


def _field(name: str, text: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {name}".ljust(_INDENT),
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
