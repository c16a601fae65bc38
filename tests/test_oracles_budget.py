"""budget: what each protocol may spend per step, by role."""

from dataclasses import replace
from typing import Any

import pytest

from testbed.analysis.view import View
from testbed.model.events import Enter, Exit, Query
from testbed.model.record import RunRecord
from testbed.model.verdict import Finding, Outcome
from testbed.oracles import budget, judge
from tests.record_builder import Model, inserted, without, write


def found(record: RunRecord) -> list[Finding]:
    return list(budget.check(View(record)))


def test_two_agreements_break_the_budget_of_one() -> None:
    record = Model("pp2tp2", "separate", claims=["budget:batched"]).record()

    verdict = judge(record)

    assert (verdict.outcome, verdict.oracle, verdict.step) == (Outcome.VIOLATION, "budget", 0)
    assert verdict.summary == (
        "budget of batched: ranks 0,1,2,3: "
        "2 all_reduce on tp[pp0], promised 1 (writing_check, loading_check)"
    )


def test_with_one_rank_a_stage_the_messages_tell() -> None:
    record = Model("pp3tp1", "separate", claims=["budget:batched"]).record()

    (finding,) = found(record)

    assert finding.divergence is not None
    assert finding.divergence.did["0"] == (
        "2 isend on pp[tp0], promised 1 (writing_check, loading_check)"
    )
    assert finding.divergence.did["2"].startswith("2 recv on pp[tp0], promised 1")


@pytest.mark.parametrize("protocol", ["batched", "fused"])
@pytest.mark.parametrize("topology", ["pp2tp2", "pp4tp1", "pp2tp2cp2"])
@pytest.mark.parametrize("storage", [False, True])
def test_batched_and_fused_keep_to_the_budget_of_batched(
    protocol: Any, topology: str, storage: bool
) -> None:
    claims = ["budget:batched"]

    assert found(Model(topology, protocol, storage=storage, claims=claims).record()) == []


def test_a_storage_reduction_of_its_own_breaks_the_budget_of_fused() -> None:
    record = Model("pp2tp2", "batched", storage=True, claims=["budget:fused"]).record()

    (finding,) = found(record)

    assert "2 all_reduce on tp[pp0], promised 1 (agree, check_storage)" in finding.summary


def test_with_one_stage_one_vector_is_all_there_is() -> None:
    assert found(Model("pp1tp4", "separate", storage=True).record()) == []


def test_a_follower_that_asks_an_event_is_told() -> None:
    record = Model("pp2tp1", transfers=[write("w0")]).record()

    (finding,) = found(inserted(record, 1, 3, Query(3, 0, "w0", True)))

    assert (finding.step, finding.ranks) == (3, (1,))
    assert finding.summary.endswith("1 queries (w0), promised 0 on a follower")


def test_a_collective_of_another_kind_is_in_nobodys_promise() -> None:
    record = Model("pp2tp1").record()
    what: tuple[Any, ...] = ("world", 0, -1, -1, "", "", 0, [], "check>settle")

    (finding,) = found(inserted(record, 0, 2, Enter(2, 0, "barrier", *what), Exit(2, 0, [])))

    assert "1 barrier on world, promised 0 all_reduce (settle)" in finding.summary


def test_an_unknown_budget_is_an_error_never_a_pass() -> None:
    verdict = judge(Model("pp2tp1", claims=["budget:frugal"]).record())

    assert verdict.outcome is Outcome.ERROR
    assert "budget of 'frugal' is unknown" in verdict.summary


def test_the_models_traffic_is_in_nobodys_budget() -> None:
    record = Model("pp2tp2").record()
    sent: tuple[Any, ...] = ("pp[tp0]", 0, 2, 0, "", "float32", 64, [], "model")
    reduced: tuple[Any, ...] = ("tp[pp0]", 9, -1, -1, "SUM", "float32", 64, [], "model")

    for op, what in (("isend", sent), ("all_reduce", reduced)):
        record = inserted(record, 0, 2, Enter(2, 0, op, *what), Exit(2, 0, []))

    assert found(record) == []


def test_deferred_is_held_to_one_agreement() -> None:
    for topology in ("pp2tp2", "pp1tp4"):
        claims = ["budget:deferred"]
        assert found(Model(topology, claims=claims).record()) == []


@pytest.mark.parametrize("protocol", ["world", "local"])
def test_who_promises_no_chain_may_send_nothing(protocol: str) -> None:
    (finding,) = found(Model("pp2tp1", claims=[f"budget:{protocol}"]).record())

    assert finding.summary == (
        f"budget of {protocol}: ranks 0,1: 1 isend on pp[tp0], promised 0 (pass_down)"
    )


def test_local_has_two_reductions_on_the_tensor_parallel_group_of_each_stage() -> None:
    what: tuple[Any, ...] = ("MIN", "int32", 1, [0], "check>least")
    calls = [Enter(2, 0, "all_reduce", "tp[pp1]", nth, -1, -1, *what) for nth in range(3)]
    silent = replace(Model("pp2tp2").record(), promises={"budget": "local"})
    for rank in range(4):
        silent = without(silent, rank, lambda one: isinstance(one, Enter))

    assert found(inserted(silent, 2, 2, *calls[:2])) == []
    (finding,) = found(inserted(silent, 2, 2, *calls))
    assert finding.summary == (
        "budget of local: rank 2: 3 all_reduce on tp[pp1], promised 2 (least)"
    )


def test_a_stage_that_is_asked_for_its_own_events_may_ask_them() -> None:
    record = Model("pp2tp1", transfers=[write("w0")]).record()
    silent = without(record, 0, lambda one: isinstance(one, Enter))
    silent = without(silent, 1, lambda one: isinstance(one, Enter))
    asked = inserted(silent, 1, 3, Query(3, 0, "w0", True))

    assert found(replace(asked, promises={"budget": "world"})) == []
