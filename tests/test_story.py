"""The story of a run: what a tired engineer reads, in the order in which it helps."""

from dataclasses import replace
from pathlib import Path

from reports.story import story
from testbed.model.events import Begin, Enter, Event, Exit, Fired, Frame, Raised
from testbed.model.record import RunRecord
from testbed.sessions.result import judged
from tests.record_builder import Model, cut, load, with_rank, without, write

TRACEBACK = """Traceback (most recent call last):
  File "/x/testbed/rank/assemble.py", line 40, in run_step
    self.subject.check_hicache_events()
  File "/x/testbed/subjects/minimal.py", line 58, in check_hicache_events
    self._protocol.check(self)
  File "/x/testbed/subjects/minimal.py", line 108, in writing_check
    pop()
KeyError: 'w0'
"""
STACK = """Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/x/mine.py", line 12 in spin
  File "/x/mine.py", line 7 in check_hicache_events
  File "/x/testbed/rank/life.py", line 60 in run_rank
"""
# As a rank and its host see them, innermost first.
RAISED_AT = [
    Frame("writing_check", "minimal.py:108", True),
    Frame("check_hicache_events", "minimal.py:58", True),
    Frame("run_step", "assemble.py:40", False),
]
STOOD_AT = (
    Frame("wait", "threading.py:327", False),
    Frame("spin", "mine.py:12", True),
    Frame("check_hicache_events", "mine.py:7", True),
    Frame("run_rank", "rank.py:60", False),
)


def told(record: RunRecord, *, full: bool = False) -> list[str]:
    """The story's lines, blanks squeezed, those of wrapped fields joined."""
    lines: list[str] = []
    for line in story(judged(record, Path("runs/x")), full=full).split("\n"):
        if line.startswith(" " * 14) and not full:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(" ".join(line.split()))
    return lines


def field(lines: list[str], name: str) -> str:
    (line,) = [line for line in lines[1:] if line.startswith(f"{name} ")]
    return line.removeprefix(f"{name} ")


def apart() -> RunRecord:
    """Rank 2 was refused w0 by a fault, and did not complete it."""
    faults = [{"kind": "empty-queue", "queue": "write", "on": {"rank": 2}}]
    record = Model(
        transfers=[write("w0", on={"rank": [0, 1, 3]}), load("l0")], faults=faults, comment="Why."
    ).record()
    fired = Fired(0, 0, 0, "empty-queue", "write w0 refused")
    return with_rank(record, 2, events=(fired, *record.ranks[2].events))


def crashed() -> RunRecord:
    record = cut(Model("pp1tp2").record(), 0, lambda one: isinstance(one, Begin) and one.step == 2)
    error = Raised(2, 0, "KeyError", "'w0'", TRACEBACK, "", RAISED_AT)
    record = with_rank(record, 0, exit="raised", events=(*record.ranks[0].events, error))
    gone = Raised(2, 0, "RuntimeError", "Connection closed by peer", "", "all_reduce")
    record = cut(record, 1, lambda one: isinstance(one, Enter) and one.step == 2)
    record = with_rank(record, 1, exit="raised", events=(*record.ranks[1].events, gone))
    return replace(record, ended="broken")


def test_a_violation_is_told_from_its_beginning_to_its_replay() -> None:
    lines = told(apart())

    assert lines[0].startswith("violation by agreement at step 1, not as expected")
    assert lines[1] == "model-batched-pp2tp2, 5 steps, 1 ms"
    assert lines[2] == "Why."
    assert field(lines, "it began at").startswith("step 1, write #0 rank 2: ")
    assert field(lines, "look at") == "rank 2"
    assert field(lines, "before that").startswith("rank 2 began step 1 with loads l0")
    assert field(lines, "injected") == ("fault 0 (empty-queue) on rank 2, step 0: write w0 refused")
    assert lines[-1].startswith("replay it: ")
    assert lines[-1].endswith("-m testbed replay runs/x")
    assert len(lines) <= 14


def test_a_crash_shows_the_roots_traceback_and_its_echoes_as_collateral() -> None:
    lines = told(crashed())

    assert lines[0].startswith("crash at step 2")
    assert field(lines, "then") == "rank 1: collateral, their peer was gone"
    assert field(lines, "traceback") == (
        "rank 0, KeyError: writing_check (minimal.py:108) < check_hicache_events (minimal.py:58)"
    )


def test_the_whole_traceback_can_be_had() -> None:
    text = story(judged(crashed(), Path("runs/x")), full=True)

    assert "traceback of rank 0, KeyError:\n  Traceback (most recent call last):" in text
    assert "rank 1 lost its connection inside all_reduce, step 2: collateral" in text


def test_a_deadlock_is_told_as_an_argument_cycle_first() -> None:
    record = replace(Model("pp2tp1").record(), promises={})
    record = without(record, 0, lambda one: isinstance(one, Enter | Exit))
    record = cut(record, 1, lambda one: isinstance(one, Enter), exit="stopped")

    lines = told(replace(record, ended="deadlock"))

    assert field(lines, "deadlock").startswith("rank 1 waits in recv #0 of pp[tp0]")
    assert field(lines, "deadlock").endswith("rank 0 left its loop without it")


def test_a_chain_that_ends_at_a_rank_that_left_is_nowhere_told_as_a_cycle() -> None:
    record = replace(Model("pp3tp1").record(), promises={})
    record = without(record, 0, lambda one: isinstance(one, Enter | Exit))
    for rank in (1, 2):
        record = cut(record, rank, lambda one: isinstance(one, Enter), exit="stopped")
    record = replace(record, ended="deadlock")

    short, full = told(record), told(record, full=True)

    assert field(short, "then") == "rank 2: stuck behind"
    assert "step 0) for rank 1: stuck behind" in " ".join(full)
    assert "cycle" not in " ".join(short + full)


def test_a_hang_shows_where_each_rank_stood() -> None:
    record = Model("pp1tp2").record()
    record = cut(record, 0, lambda one: isinstance(one, Begin) and one.step == 2)
    record = cut(record, 1, lambda one: isinstance(one, Enter) and one.step == 2)
    for rank in (0, 1):
        record = with_rank(record, rank, exit="stopped", stack=STACK, frames=STOOD_AT)

    lines = told(replace(record, ended="deadline"))

    # Only the root's: the other merely waits for it.
    stacks = [line for line in lines if line.startswith("stack ")]
    assert stacks == ["stack rank 0: spin (mine.py:12) < check_hicache_events (mine.py:7)"]
    assert field(lines, "then").startswith(
        "rank 1 waits in all_reduce #2 of tp[pp0] (check>agree>reduce)"
    )
    assert "stack of rank 1:" in "\n".join(told(replace(record, ended="deadline"), full=True))
    assert field(lines, "it began at").startswith("step 2, tp[pp0] #2")


def test_of_a_crash_only_the_root_is_told_at_length() -> None:
    def stuck(event: Event) -> bool:
        return isinstance(event, Enter) and event.step == 2 and not event.op.startswith("wait")

    record = Model("pp2tp2").record()
    for rank in (1, 2, 3):
        record = cut(record, rank, stuck, exit="stopped")
    record = cut(record, 0, lambda one: isinstance(one, Begin) and one.step == 2)
    error = Raised(2, 0, "KeyError", "'w0'", TRACEBACK, "", RAISED_AT)
    record = with_rank(record, 0, exit="raised", events=(*record.ranks[0].events, error))

    lines = told(replace(record, ended="broken"))

    assert field(lines, "it began at").endswith(
        "rank 0: raised KeyError: 'w0' (writing_check at minimal.py:108), step 2"
    )
    then = [line for line in lines if line.startswith("then ")]
    assert [line.split(" for ")[-1] for line in then] == [
        "rank 0, step 2",
        "rank 0, step 2",
        "then rank 3: stuck behind",
    ]
    assert not [line for line in lines if line.startswith("look at")]
    assert len([line for line in lines if line]) <= 10


def test_where_there_is_no_majority_both_sides_are_named() -> None:
    record = Model("pp2tp1", transfers=[write("w0", on="leader")]).record()

    assert field(told(record), "look at") == ("rank 1 and rank 0: two ranks, no majority")


def test_of_a_sound_run_there_is_little_to_tell() -> None:
    lines = told(Model().record())

    assert lines[0] == "ok, as expected"
    assert "Nothing diverged: every oracle holds." in " ".join(lines)
