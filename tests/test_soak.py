"""The soak: a seed decides its scenarios, what it finds is shrunk and saved as a file that runs,
and the faults' soak sees what is left behind.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import soak, soak_faults
from testbed.scenario import load
from testbed.topology import Topology
from testbed.verdict import Outcome
from testbed.world import Fleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(4) as running:
        yield running


def test_nothing_is_found_in_a_sound_protocol(fleet: Fleet) -> None:
    result = soak.hunt(fleet, "batched", examples=10, seed=1)

    assert result.found is None
    assert result.ran >= 10


def test_a_planted_bug_is_found_shrunk_and_saved_as_a_file_that_runs(
    fleet: Fleet, tmp_path: Path
) -> None:
    result = soak.hunt(fleet, "bug:no-wait", examples=100, seed=1)

    assert result.found is not None
    assert result.verdict is not None
    assert result.verdict.outcome is Outcome.VIOLATION
    saved = load(soak.save(result, tmp_path))
    assert saved.but(name="soak") == result.found.but(expect=[])
    # Shrunk: one transfer on the smallest topology that has two stages, one slow rank.
    assert saved.topology == Topology(2, 1)
    assert len(saved.workload["writes"]) + len(saved.workload["loads"]) == 1
    assert len(saved.faults) == 1


def test_every_process_fault_ends_in_its_verdict_and_leaves_nothing(fleet: Fleet) -> None:
    before = soak_faults.standing(fleet)
    tallies = {blow.name: soak_faults.Tally() for blow in soak_faults.blows()}
    for blow in soak_faults.blows():
        soak_faults.strike(fleet, blow, Topology(2, 2), tallies[blow.name])

    assert [told for one in tallies.values() for told in one.wrong] == []
    after = soak_faults.standing(fleet)
    assert (after.processes, after.zombies, after.files) == (before.processes, 0, before.files)
