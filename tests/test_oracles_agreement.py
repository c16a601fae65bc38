"""agreement: transfers, requests, evictions and trees that differ between ranks."""

from testbed.analysis.view import View
from testbed.model.events import Begin, Complete, End, Evict, Request
from testbed.model.record import RunRecord
from testbed.model.verdict import Finding, Outcome
from testbed.oracles import agreement, judge
from tests.record_builder import Model, changed, cut, inserted, load, without, write


def found(record: RunRecord) -> list[Finding]:
    return list(agreement.check(View(record)))


def test_a_transfer_completed_by_all_but_one_is_told_with_the_minority() -> None:
    record = Model("pp1tp4", transfers=[write("w0")]).record()

    finding, *_ = found(without(record, 2, lambda one: isinstance(one, Complete)))

    assert (finding.step, finding.ranks) == (1, (2,))
    assert finding.summary == "write: rank 2: completed nothing; ranks 0,1,3: completed w0"


def test_counts_that_agree_on_different_transfers_are_told_by_identity() -> None:
    # The follower's queue lacks w0: MIN agreed on one, and it completed another one.
    transfers = [write("w0", on="leader"), write("w1", ready=3, slow={2: 1, 3: 1})]

    finding, *_ = found(Model(transfers=transfers).record())

    assert (finding.step, finding.ranks) == (1, (2, 3))
    assert finding.divergence is not None
    assert finding.divergence.did["2"] == "completed w1"


def test_the_same_transfers_in_another_order_are_told() -> None:
    transfers = [load("l0"), load("l1")]
    record = Model("pp1tp2", transfers=transfers).record()
    record = changed(record, 1, Complete, 1, lambda one: one._replace(key="l1"))
    record = changed(record, 1, Complete, 1, lambda one: one._replace(key="l0"), nth=1)

    (finding,) = found(record)

    assert finding.divergence is not None
    assert (finding.divergence.channel, finding.divergence.ordinal) == ("load", 0)


def test_a_follower_told_to_complete_what_it_never_had_is_a_violation_not_just_a_crash() -> None:
    record = Model(transfers=[write("w0", on="leader")]).record()

    verdict = judge(record)

    assert record.ended == "broken"
    assert (verdict.outcome, verdict.oracle) == (Outcome.VIOLATION, "agreement")
    assert (verdict.step, verdict.ranks) == (1, (2, 3))
    assert verdict.summary == (
        "write: ranks 2,3: no ACK of w0 to complete, its queue is empty; ranks 0,1: completed w0"
    )
    assert verdict.notes[0].startswith("then crash: ranks 2,3 raised IndexError: pop from empty")


def test_a_rank_cut_short_with_the_transfer_in_its_queue_is_not_accused() -> None:
    record = Model("pp2tp1", transfers=[write("w0")]).record()

    cut_short = cut(record, 1, lambda one: isinstance(one, Begin) and one.step == 1, exit="stopped")

    assert found(cut_short) == []


def test_a_rank_cut_short_is_held_to_the_part_it_did() -> None:
    record = Model("pp2tp1", transfers=[write("w0"), write("w1")]).record()
    record = cut(record, 1, lambda one: isinstance(one, Complete), exit="stopped")

    assert found(record) == []
    swapped = changed(record, 1, Complete, 1, lambda one: one._replace(key="w1"))
    assert [finding.ranks for finding in found(swapped)] == [(1,)]


def test_trees_that_differ_are_told_at_the_first_step() -> None:
    record = Model().record()
    for step in (2, 3, 4):
        record = changed(record, 3, End, step, lambda one: one._replace(tree=17))

    (finding,) = found(record)

    assert (finding.step, finding.ranks) == (2, (3,))
    assert finding.divergence is not None
    assert finding.divergence.channel == "tree"


def test_eviction_victims_that_differ_are_told_before_the_trees_they_lead_to() -> None:
    record = Model("pp1tp2").record()
    for rank, victim in ((0, "a"), (1, "b")):
        record = inserted(record, rank, 2, Evict(2, 0, "device", [victim]))

    (finding,) = found(record)

    assert finding.summary == "evict device: rank 1: evicted b; rank 0: evicted a"


def test_a_request_that_hits_more_on_one_rank_is_told() -> None:
    record = Model("pp1tp2").record()
    for rank, hit in ((0, 4), (1, 3)):
        record = inserted(record, rank, 1, Request(1, 0, "r0", hit, 0, 6 - hit))

    (finding,) = found(record)

    assert (finding.step, finding.divergence and finding.divergence.channel) == (1, "requests")


def test_a_follower_without_a_controller_falls_behind_the_others_residency() -> None:
    record = Model("pp2tp1", transfers=[write("w0")], without=(1,)).record()

    verdict = judge(record)

    assert (verdict.outcome, verdict.oracle, verdict.ranks) == (
        Outcome.VIOLATION,
        "agreement",
        (1,),
    )
