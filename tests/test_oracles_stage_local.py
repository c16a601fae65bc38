"""stage-local: storage counts that crossed from one stage to another."""

import pytest

from testbed.analysis.view import View
from testbed.model.events import Begin, Block, End, Take
from testbed.model.record import RunRecord
from testbed.model.verdict import Finding, Outcome
from testbed.oracles import judge, stage_local
from tests.record_builder import Item, Model, Protocol, changed, cut, inserted, without


def found(record: RunRecord) -> list[Finding]:
    return list(stage_local.check(View(record)))


def fused(*items: Item, claimed: bool = True, topology: str = "pp2tp1") -> RunRecord:
    claims = ["stage-local"] if claimed else []
    return Model(topology, "fused", storage=True, items=items, claims=claims).record()


def test_a_follower_told_to_take_what_only_the_leader_has_is_told() -> None:
    record = fused(Item("prefetch", 1, "leader"))

    verdict = judge(record)

    assert record.ended == "deadline"
    assert (verdict.outcome, verdict.oracle) == (Outcome.VIOLATION, "stage-local")
    assert (verdict.step, verdict.ranks) == (1, (1,))
    assert verdict.summary.startswith("prefetch: rank 1 held 0 and had to take more")


def test_a_follower_told_to_leave_what_only_it_has_is_told() -> None:
    (finding,) = found(fused(Item("release", 2, "followers")))

    assert (finding.step, finding.ranks) == (2, (1,))
    assert "held 1 and took 0" in finding.summary


def test_taking_more_than_a_peer_of_the_stage_had_is_told() -> None:
    record = Model("pp1tp2", storage=True, items=[Item("backup", 1, {"tp": 1})]).record()

    (finding,) = found(_taken(record, rank=1, step=1))

    assert finding.ranks == (1,)


def _taken(record: RunRecord, rank: int, step: int) -> RunRecord:
    record = changed(record, rank, End, step, lambda one: one._replace(storage={"backup": 0}))
    return inserted(record, rank, step, Take(step, 0, "backup", "b0"))


def test_without_promise_or_claim_counts_may_come_from_the_leader() -> None:
    assert found(fused(Item("release", 2, "followers"), claimed=False)) == []


def test_a_rank_cut_short_before_its_drain_is_not_accused() -> None:
    record = Model("pp1tp2", storage=True, items=[Item("release", 1)]).record()
    record = without(record, 1, lambda one: isinstance(one, Take))

    record = cut(record, 1, lambda one: isinstance(one, Begin) and one.step == 1, exit="stopped")

    assert found(record) == []


@pytest.mark.parametrize("protocol", ["separate", "batched"])
def test_ranks_of_one_stage_that_hold_unequal_numbers_take_the_least(protocol: Protocol) -> None:
    items = [Item("release", 1, {"tp": 0}), Item("release", 1), Item("backup", 2, {"pp": 1})]
    record = Model("pp2tp2cp2", protocol, storage=True, items=items).record()

    assert found(record) == []


def test_a_wait_for_an_item_is_evidence_even_if_the_peers_never_came_there() -> None:
    record = Model("pp2tp2", storage=True).record()
    record = inserted(record, 3, 1, Block(1, 0, "release"))
    record = cut(record, 3, lambda one: isinstance(one, Block), exit="stopped")

    record = cut(record, 2, lambda one: isinstance(one, Begin), exit="stopped")

    assert [finding.ranks for finding in found(record)] == [(3,)]
