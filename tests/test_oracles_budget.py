"""budget: what each protocol may spend per step, by role."""

from typing import Any

import pytest

from testbed.oracles import budget, judge
from testbed.oracles.view import View
from testbed.record import RunRecord
from testbed.trace.events import Enter, Exit, Query
from testbed.verdict import Finding, Outcome
from tests.record_builder import Model, inserted, write


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
