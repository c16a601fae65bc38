"""Which call sites belong together is learned from the run: sound schedules are left alone, and two
operations that met the wrong way round are found.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.analysis.view import View
from testbed.model.events import Begin, End, Enter, Event, Exit, Final
from testbed.model.record import RankRecord, RunRecord
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.model.verdict import Finding
from testbed.oracles import pairing

SOUND = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Rank:
    """One rank's record, written operation by operation."""

    number: int
    step: int = 0
    events: list[Event] = field(default_factory=list)
    ordinals: defaultdict[object, int] = field(default_factory=lambda: defaultdict(int))

    def enter(self, op: str, peer: int, tag: int, caller: str, *, thread: int = 0) -> None:
        """One call that returned at once."""
        sends = op in ("send", "isend")
        ends = (self.number, peer) if sends else (peer, self.number)
        channel = "world" if tag < 0 else (*ends, tag)
        what = (op, "world", self.ordinals[channel], peer, tag)
        site = f"own.py:{sum(caller.encode())}"
        self.ordinals[channel] += 1
        entry = Enter(self.step, 0, *what, "", "float32", 4, [], f"loop>{caller}", (), site, thread)
        self.events += [entry, Exit(self.step, 0, [], thread)]


def record(ranks: Sequence[Rank], steps: int, ended: str = "finished") -> RunRecord:
    scenario = Scenario(
        name="own",
        topology=Topology(len(ranks), 1, 1),
        workload={"kind": "scripted"},
        subject="own:Own",
        steps=steps,
    )
    shares = tuple(RankRecord(rank.number, "done", tuple(rank.events)) for rank in ranks)
    return RunRecord(scenario, shares, ended, 1.0)  # type: ignore[arg-type]


def found(ranks: Sequence[Rank], steps: int = 1) -> list[Finding]:
    return list(pairing.check(View(record(ranks, steps))))


def stages(number: int) -> list[Rank]:
    return [Rank(rank) for rank in range(number)]


# Sound schedules


def one_f_one_b(ranks: list[Rank], microbatches: int) -> None:
    """Each stage warms up by itself: its sends and receives come from other functions then."""
    size = len(ranks)
    for rank in ranks:
        warm = min(size - 1 - rank.number, microbatches)
        first, last = rank.number == 0, rank.number == size - 1
        for batch in range(microbatches):
            phase = "warm_up" if batch < warm else "steady"
            if not first:
                rank.enter("recv", rank.number - 1, 0, f"{phase}>recv_forward")
            if not last:
                rank.enter("send", rank.number + 1, 0, f"{phase}>send_forward")
        for batch in range(microbatches):
            phase = "steady" if batch < microbatches - warm else "cool_down"
            if not last:
                rank.enter("recv", rank.number + 1, 0, f"{phase}>recv_backward")
            if not first:
                rank.enter("send", rank.number - 1, 0, f"{phase}>send_backward")


@SOUND
@given(st.integers(2, 4), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_a_pipeline_that_warms_up_is_sound(size: int, batches: list[int]) -> None:
    ranks = stages(size)
    for step, number in enumerate(batches):
        for rank in ranks:
            rank.step = step
        one_f_one_b(ranks, number)

    assert found(ranks, len(batches)) == []


@SOUND
@given(st.integers(1, 6), st.integers(1, 6))
def test_forward_and_backward_on_one_pipe_of_an_interleaved_pipeline_are_sound(
    steps: int, rounds: int
) -> None:
    """With two stages what goes on to the next chunk and what goes back take the same pipe: one end
    sends where it goes forward what the other receives where it goes back.
    """
    ranks = stages(2)
    for step in range(steps):
        for rank in ranks:
            rank.step = step
        for _ in range(rounds):
            ranks[0].enter("send", 1, 0, "forward_step")
            ranks[0].enter("send", 1, 0, "backward_step")
            ranks[1].enter("recv", 0, 0, "backward_step")
            ranks[1].enter("recv", 0, 0, "forward_step")

    assert found(ranks, steps) == []


@SOUND
@given(st.integers(2, 5), st.integers(1, 5))
def test_a_ring_of_broadcasts_is_sound(size: int, steps: int) -> None:
    ranks = stages(size)
    for step in range(steps):
        for rank in ranks:
            rank.step = step
            for root in range(size):
                name = "publish" if root == rank.number else "follow"
                rank.enter("broadcast", root, -1, name)

    assert found(ranks, steps) == []


@SOUND
@given(st.integers(2, 4), st.integers(1, 3), st.integers(2, 8))
def test_a_ring_that_takes_its_messages_later_is_sound(size: int, lag: int, steps: int) -> None:
    ranks = stages(size)
    for step in range(steps + lag):
        for rank in ranks:
            rank.step = step
            if step >= lag:
                rank.enter("recv", (rank.number - 1) % size, 0, "take")
            if step < steps:
                rank.enter("isend", (rank.number + 1) % size, 0, "pass_on")

    assert found(ranks, steps + lag) == []


@SOUND
@given(st.integers(2, 12), st.randoms(use_true_random=False), st.sampled_from(["send", "all"]))
def test_conditions_of_its_own_on_either_end_are_sound(
    steps: int, draw: random.Random, kind: str
) -> None:
    ranks = stages(2)
    for step in range(steps):
        for rank in ranks:
            rank.step = step
            way = draw.choice(["fast", "slow"])
            if kind == "all":
                rank.enter("all_reduce", -1, -1, way)
            elif rank.number:
                rank.enter("recv", 0, 0, f"recv_{way}")
            else:
                rank.enter("send", 1, 0, f"send_{way}")

    assert found(ranks, steps) == []


# What crosses


def both_reductions(rank: Rank, names: Iterable[str]) -> None:
    for name in names:
        rank.enter("all_reduce", -1, -1, name)


@pytest.mark.parametrize("before", [0, 3])
def test_two_reductions_swapped_on_one_rank_are_told(before: int) -> None:
    ranks = stages(3)
    for step in range(before + 1):
        for rank in ranks:
            rank.step = step
            names = ["writes", "loads"]
            both_reductions(rank, reversed(names) if (step, rank.number) == (before, 2) else names)

    (finding,) = found(ranks, before + 1)

    assert (finding.step, finding.ranks) == (before, (2,))
    assert finding.divergence is not None
    assert finding.divergence.ordinal == 2 * before
    assert "by loads at own.py" in finding.divergence.did["2"]


def test_two_ranks_that_swapped_reductions_have_no_majority() -> None:
    ranks = stages(2)
    both_reductions(ranks[0], ["writes", "loads"])
    both_reductions(ranks[1], ["loads", "writes"])

    (finding,) = found(ranks)

    assert set(finding.ranks) == {0, 1}
    assert finding.divergence is not None
    assert finding.divergence.even


def test_reductions_under_other_names_on_either_rank_are_told_once_it_is_learned() -> None:
    ranks = stages(2)
    for step in range(4):
        for rank in ranks:
            rank.step = step
            side = ("lead", "follow")[rank.number]
            names = [f"{side}_writes", f"{side}_loads"]
            both_reductions(rank, reversed(names) if (step, rank.number) == (2, 1) else names)

    (finding,) = found(ranks, 4)

    assert (finding.step, finding.divergence and finding.divergence.ordinal) == (2, 4)


@SOUND
@given(st.integers(3, 8), st.data())
def test_two_messages_swapped_on_one_end_are_told(steps: int, data: st.DataObject) -> None:
    wrong = data.draw(st.integers(0, steps - 1))
    end = data.draw(st.integers(0, 1))
    ranks = stages(2)
    for step in range(steps):
        for rank in ranks:
            rank.step = step
            names = ["keys", "values"]
            if (step, rank.number) == (wrong, end):
                names.reverse()
            for name in names:
                if rank.number:
                    rank.enter("recv", 0, 0, f"recv_{name}")
                else:
                    rank.enter("send", 1, 0, f"send_{name}")

    (finding,) = found(ranks, steps)

    assert (finding.step, finding.divergence and finding.divergence.ordinal) == (wrong, 2 * wrong)


def test_the_step_of_a_thread_is_no_step() -> None:
    ranks = stages(2)
    for rank in ranks:
        rank.step = rank.number
        rank.enter("all_reduce", -1, -1, "serve", thread=3)
    sound = record(ranks, 2)

    strict = RunRecord(sound.scenario, sound.ranks, "finished", 1.0, {"same-site": True})

    assert list(pairing.check(View(strict))) == []
    assert View(strict).ranks[0].at(0).ops == []
    assert len(View(strict).ranks[0].ops) == 1


@pytest.mark.parametrize("op", ["all_to_all_single", "all_gather_object"])
def test_sizes_that_may_differ_between_members_are_not_compared(op: str) -> None:
    ranks = stages(2)
    for rank in ranks:
        rank.enter(op, -1, -1, "exchange")
        entered = rank.events[0]
        assert isinstance(entered, Enter)
        rank.events[0] = entered._replace(numel=4 + rank.number)

    assert found(ranks) == []


def exchanged(goes: list[list[int]], comes: list[list[int]]) -> list[Finding]:
    ranks = stages(2)
    for rank, shape, values in zip(ranks, goes, comes, strict=True):
        rank.enter("all_to_all_single", -1, -1, "exchange")
        entered = rank.events[0]
        assert isinstance(entered, Enter)
        rank.events[0] = entered._replace(shape=shape, values=values)
    return found(ranks)


def test_what_goes_to_a_member_has_to_be_what_that_member_takes() -> None:
    assert exchanged([[1, 3], [2, 4]], [[1, 2], [3, 4]]) == []

    (finding,) = exchanged([[1, 3], [2, 4]], [[1, 2], [5, 4]])

    assert "rank 0: all_to_all_single: sends 3 elements to rank 1" in finding.summary
    assert "rank 1: all_to_all_single: takes 5 elements from rank 0" in finding.summary


def test_a_message_from_any_source_is_paired_with_the_sender_it_was_taken_from() -> None:
    ranks = stages(3)
    for sender, numel in ((1, 4), (2, 8)):
        ranks[sender].enter("send", 0, 0, "report")
        entered = ranks[sender].events[0]
        assert isinstance(entered, Enter)
        ranks[sender].events[0] = entered._replace(numel=numel)
    for source, numel in ((2, 8), (1, 4)):
        ranks[0].enter("recv", -1, 0, "collect")
        entered, left = ranks[0].events[-2:]
        assert isinstance(entered, Enter)
        assert isinstance(left, Exit)
        ranks[0].events[-2:] = [entered._replace(numel=numel), left._replace(source=source)]

    assert found(ranks) == []

    left = ranks[0].events[1]
    assert isinstance(left, Exit)
    ranks[0].events[1] = left._replace(source=1)  # now it took four elements for eight
    (finding,) = found(ranks)
    assert "1->0" in finding.summary


def test_a_peer_that_does_not_exist_raises_nowhere() -> None:
    ranks = stages(2)
    ranks[0].enter("send", 99, 0, "astray")
    ranks[1].enter("recv", 77, 0, "astray")
    final = Final(0, 0, {}, {}, [0, 0], [0, 0], {}, 0)
    begin, end = Begin(0, 0, [], [], {}), End(0, 0, [], [], [], [], {}, 0, [0, 0], 0)
    for rank in ranks:
        rank.events = [begin, *rank.events, end, final]

    assert found(ranks) == []
