"""The soak: a seed decides its scenarios, what it finds is shrunk and saved as a file that runs,
and the faults' soak sees what is left behind.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.fleet import Fleet
from testbed.measure import soak, soak_commands, soak_faults
from testbed.model.scenario import load
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome


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


@pytest.mark.parametrize("attack", soak_commands.attacks(), ids=lambda attack: attack.name)
def test_a_command_that_is_attacked_ends_as_it_must_and_leaves_nothing(
    attack: soak_commands.Attack,
) -> None:
    ends = soak_commands.Ends()
    words = soak_commands.commands(attack.subject, 4)["run"]
    soak_commands.strike(attack, words, random.Random(1), ends)
    assert (ends.runs, ends.wrong) == (1, [])


def test_a_command_that_ends_otherwise_says_a_traceback_and_leaves_things_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak_commands, "_GONE_LIMIT_S", 0.0)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "untidy.py").write_text(
        "import os, subprocess, sys\n"
        "open(os.path.join(os.environ['TMPDIR'], 'a-file'), 'w')\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "raise KeyError('oh')\n"
    )
    attack = soak_commands.Attack("none", lambda _: None, frozenset({0}))
    ends = soak_commands.Ends()
    soak_commands.strike(attack, ["untidy"], random.Random(1), ends)
    status, traceback, process, files = ends.wrong
    assert status == "it ended with 1: KeyError: 'oh'"
    assert traceback.startswith("a traceback: ")
    assert process.startswith("process ")
    assert files == "temporary files are left: a-file"


def test_a_seed_decides_which_commands_are_attacked_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(seed: int) -> list[object]:
        seen: list[object] = []
        monkeypatch.setattr(
            soak_faults,
            "strike_command",
            lambda attack, words, chance, _: seen.append((attack.name, words, chance.random())),
        )
        monkeypatch.setattr(soak_faults, "spinning", lambda count: os.scandir("/"))
        soak_faults.attacked(2, 12, seed)
        return seen

    assert struck(3) == struck(3)
    assert struck(3) != struck(4)
