"""No false alarms: sound protocols, whatever the timing, topology and place of the controllers."""

import random

import pytest

from testbed.model.events import Begin
from testbed.model.verdict import Outcome
from testbed.oracles import judge
from tests.record_builder import Item, Model, Protocol, Transfer, changed, load, write

TOPOLOGIES = ("pp1tp1", "pp1tp4", "pp2tp1", "pp2tp2", "pp2tp1cp2", "pp3tp2cp2", "pp4tp1")
PROTOCOLS: tuple[Protocol, ...] = ("separate", "batched", "fused")


@pytest.mark.parametrize("topology", [name for name in TOPOLOGIES if name != "pp1tp1"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_with_nothing_to_do_is_ok(topology: str, protocol: Protocol) -> None:
    verdict = judge(Model(topology, protocol).record())

    assert (verdict.outcome, verdict.findings, verdict.notes) == (Outcome.OK, (), ())


def test_a_run_in_which_nothing_was_recorded_says_so() -> None:
    # One rank has nobody to agree with, and here it has no transfer either.
    verdict = judge(Model("pp1tp1").record())

    assert (verdict.outcome, verdict.findings) == (Outcome.OK, ())
    assert verdict.summary == "nothing was recorded: no operation and no transfer"
    assert len(verdict.notes) == 1
    with_transfer = judge(Model("pp1tp1", transfers=[write("w0")]).record())
    assert (with_transfer.summary, with_transfer.notes) == ("every oracle holds", ())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(12))
def test_a_sound_run_with_random_timing_is_ok(topology: str, protocol: Protocol, seed: int) -> None:
    model = _random_model(topology, protocol, random.Random(seed))

    verdict = judge(model.record())

    assert (verdict.outcome, verdict.findings) == (Outcome.OK, ())


def _random_model(topology: str, protocol: Protocol, draw: random.Random) -> Model:
    size = Model(topology).topology.size
    steps = draw.randint(1, 12)

    def transfer(queue: str, place: int) -> Transfer:
        slow = {rank: draw.randint(0, 9) for rank in range(size) if draw.random() < 0.4}
        at = draw.randrange(steps)
        script = draw.choice(["", "ms:5"])
        return Transfer(queue, f"{queue[0]}{place}", at, draw.randint(0, 6), "all", slow, script)

    transfers = [transfer(draw.choice(["write", "load"]), place) for place in range(6)]
    storage = draw.random() < 0.5
    items = [
        Item(draw.choice(["prefetch", "backup", "release"]), draw.randrange(steps))
        for _ in range(4 * storage)
    ]
    return Model(topology, protocol, steps=steps, transfers=transfers, items=items, storage=storage)


def test_events_that_never_fire_anywhere_are_no_fault_of_the_protocol() -> None:
    model = Model(steps=9, transfers=[write("w0", ready=None), load("l0", ready=None)])

    assert judge(model.record()).outcome is Outcome.OK


def test_a_slow_follower_only_stalls_and_the_stall_is_counted() -> None:
    slow = {2: 4, 3: 3}

    verdict = judge(Model(transfers=[write("w0", ready=1, slow=slow)]).record())

    assert verdict.outcome is Outcome.OK
    assert (verdict.ops["stall_steps"], verdict.ops["max_stall"]) == (5, 3)


def test_a_leader_slower_than_the_run_is_long_is_no_starvation() -> None:
    model = Model("pp2tp1", steps=8, transfers=[write("w0", ready=1, slow={0: 30})])

    assert judge(model.record()).outcome is Outcome.OK


def test_stages_with_different_storage_items_are_sound_where_counts_stay_in_the_stage() -> None:
    items = [Item("prefetch", 1, {"pp": 0}), Item("release", 2, {"pp": 1})]

    verdict = judge(Model(storage=True, items=items).record())

    assert verdict.outcome is Outcome.OK


def test_items_that_come_between_the_start_of_the_step_and_the_count_may_be_taken() -> None:
    # One more than the step began with, on every rank of the stage: it came in time.
    model = Model("pp1tp2", storage=True, items=[Item("release", 1), Item("release", 1)])
    record = model.record()
    for rank in (0, 1):
        record = changed(record, rank, Begin, 1, lambda one: one._replace(storage={"release": 1}))

    assert judge(record).outcome is Outcome.OK


@pytest.mark.parametrize("stage", ["leader", "followers"])
def test_a_whole_world_without_work_on_some_ranks_stays_silent(stage: str) -> None:
    # No controller and no transfer: there is nothing to hold back.
    without = (0, 1) if stage == "leader" else (2, 3)

    assert judge(Model(without=without).record()).outcome is Outcome.OK
