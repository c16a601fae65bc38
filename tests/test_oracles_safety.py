"""safety: transfers completed too early, and leader-stage ranks that were run ahead of."""

from testbed.analysis.view import View
from testbed.model.events import Begin, Complete, Start
from testbed.model.record import RunRecord
from testbed.model.verdict import Finding
from testbed.oracles import safety
from tests.record_builder import Model, changed, load, with_events, write


def found(record: RunRecord) -> list[Finding]:
    return list(safety.check(View(record)))


def test_a_transfer_completed_before_its_own_event_was_ready_is_told() -> None:
    record = Model(transfers=[load("l0")]).record()

    (finding,) = found(changed(record, 3, Complete, 1, lambda one: one._replace(ready=False)))

    assert (finding.step, finding.ranks) == (1, (3,))
    assert finding.summary == "load: rank 3: completed l0 before its own event was ready"


def test_all_ranks_that_completed_it_too_early_are_named_together() -> None:
    record = Model(transfers=[load("l0")]).record()
    for rank in (2, 3):
        record = changed(record, rank, Complete, 1, lambda one: one._replace(ready=False))

    (finding,) = found(record)

    assert finding.ranks == (2, 3)
    assert finding.summary == "load: ranks 2,3: completed l0 before its own event was ready"


def test_completing_more_than_a_slow_leader_rank_has_ready_is_told() -> None:
    record = Model(transfers=[write("w0")]).record()

    def unready(begin: Begin) -> Begin:
        return begin._replace(write=[["w0", False]])

    finding, *_ = found(changed(record, 1, Begin, 1, unready))

    assert finding.step == 1
    assert finding.summary == (
        "write: ranks 0,1,2,3: completed w0, which is not ready on leader-stage rank 1"
    )


def test_only_the_prefix_counts_not_what_is_ready_behind_a_slow_head() -> None:
    record = Model("pp1tp2", transfers=[write("w0"), write("w1")]).record()

    def blocked_head(begin: Begin) -> Begin:
        return begin._replace(write=[["w0", False], ["w1", True]])

    assert len(found(changed(record, 0, Begin, 1, blocked_head))) == 1


def test_an_event_in_milliseconds_may_become_ready_after_the_step_began() -> None:
    transfers = [write("w0", script="ms:3")]
    record = Model("pp1tp2", transfers=transfers).record()

    def unready(begin: Begin) -> Begin:
        return begin._replace(write=[["w0", False]])

    assert found(changed(record, 0, Begin, 1, unready)) == []


def test_a_slow_follower_binds_nobody() -> None:
    assert found(Model(transfers=[write("w0", slow={2: 5, 3: 5})]).record()) == []


def test_a_leader_without_a_controller_had_nothing_ready() -> None:
    record = Model("pp2tp1", transfers=[write("w0")]).record()

    def nothing_there(events: list[object]) -> list[object]:
        kept = [one for one in events if not isinstance(one, Start | Complete)]
        return [one._replace(write=[]) if isinstance(one, Begin) else one for one in kept]

    (finding,) = found(with_events(record, 0, nothing_there))  # type: ignore[arg-type]

    assert finding.ranks == (1,)
