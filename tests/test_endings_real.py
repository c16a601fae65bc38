"""How subjects of one's own end on real ranks: whatever they do is told as theirs, and the fleet
goes on.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.fleet import Fleet
from testbed.model.events import Enter, Raised
from testbed.model.record import RunRecord, load, save
from testbed.model.scenario import Scenario, from_object
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome, Verdict
from testbed.oracles import judge
from tests.broken_host import SAID
from tests.fake_hiradix import CONFIGURED, LATER, files
from tests.fake_hiradix import HEAD as HIRADIX_HEAD

HEAD = """
import json, os, sys, threading
import torch
import torch.distributed as dist
from testbed.protocols import Batched
from testbed.subjects.minimal import MinimalSubject


class Mine(MinimalSubject):
    def __init__(self, cache, controller, groups, scenario):
        super().__init__(cache, controller, Batched(groups), scenario.storage, ())
        self.groups = groups
        self.step = -1
        self.promises = {}

    def check_hicache_events(self):
        self.step += 1
        super().check_hicache_events()
        if self.step == 1:
            self.act(self.groups.rank)
"""
FOLDERS = ("plain", "torch", "testbed/cache", "testbed/world", "site")
MANY = "[dist.all_reduce(torch.ones(1), group=self.groups.pp) for _ in range(8_000)]"
BODIES = {
    "raises": "raise KeyError('w0')",
    "in_json": "json.loads('{')",
    "misspelt": "self.no_such_name",
    "on_our_object": "self.controller.no_such_name",
    "in_numpy_like": "torch.zeros(2).view(3)",
    "sys_exit": "sys.exit(0)",
    "interrupt": "raise KeyboardInterrupt",
    "mute": "raise Mute()",
    "surrogate": "raise ValueError('\\udcff ends')",
    "huge": "raise ValueError('x' * 50_000_000)",
    "huge_class": "raise type('X' * 1_000_000, (Exception,), {})('short')",
    "exit_0": "os._exit(0) if rank == 1 else None",
    "exit_81": "os._exit(81) if rank == 1 else None",
    "exit_82": "os._exit(82) if rank == 1 else None",
    "prints": "sys.stdout.write('a\\0b' * 20_000_000 + '\\n'); sys.stdout.flush(); "
    "sys.stdout.buffer.write(b'\\xff\\xed\\xb3\\xbf last words\\n'); sys.stdout.flush(); "
    "os._exit(3) if rank == 1 else None",
    "promises": "pass",
    "sound": "pass",
    "many": MANY,
    "filled_up": f"{MANY}; raise KeyError('w0')",
    "endless": "\n        ".join(
        (
            "value = torch.ones(1)",
            "while self.step < 2:",
            "    dist.all_reduce(value, group=self.groups.pp)",
        )
    ),
}


def written(folder: Path) -> None:
    """A module with a subject for each body, and one whose class comes from another module."""
    folder.mkdir(parents=True)
    parts = [HEAD]
    parts.append("class Mute(Exception):\n    def __str__(self): raise ValueError('no text')\n")
    for name, body in BODIES.items():
        parts.append(f"class {name}(Mine):\n    def act(self, rank):\n        {body}\n")
    parts.append("promises.promises = property(lambda self: {'budget': print}, lambda *_: None)\n")
    (folder / f"{folder.name}_mine.py").write_text("\n\n".join(parts))
    (folder / f"{folder.name}_again.py").write_text(
        f"from {folder.name}_mine import Mine, raises\n"
        "def made(*given):\n    return raises(*given)\n"
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own")
    for folder in FOLDERS:
        written(root / folder)
    return root


@pytest.fixture(scope="module")
def two(root: Path) -> Iterator[Fleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(str(root / folder) for folder in FOLDERS))
        with Fleet(2) as fleet:
            yield fleet


def scenario(name: str, module: str = "plain_mine", **changes: object) -> Scenario:
    data = {
        "name": "own",
        "topology": {"pp": 2, "tp": 1},
        "steps": 4,
        "subject": f"{module}:{name}",
        "workload": {"kind": "scripted", "writes": [{"at": 0}]},
    }
    return from_object({**data, **changes}, "test")


def judged(record: RunRecord, folder: Path) -> Verdict:
    """The verdict, the same once the record was kept."""
    save(record, folder)
    verdict = judge(record)
    assert judge(load(folder)) == verdict
    return verdict


CRASHES = {
    "raises": "rank(s) 0,1 raised KeyError: 'w0' (act at plain_mine.py:",
    "in_json": "rank(s) 0,1 raised JSONDecodeError: Expecting property name",
    "misspelt": "rank(s) 0,1 raised AttributeError: 'misspelt' object has no attribute",
    "on_our_object": "rank(s) 0,1 raised AttributeError: 'TransferController' object has no",
    "in_numpy_like": "rank(s) 0,1 raised RuntimeError: shape '[3]' is invalid",
    "sys_exit": "rank(s) 0,1 raised SystemExit: 0 (act at plain_mine.py:",
    "interrupt": "rank(s) 0,1 raised KeyboardInterrupt (act at plain_mine.py:",
    "mute": "rank(s) 0,1 raised Mute: <ValueError was raised when this was asked for> (act at",
    "surrogate": "rank(s) 0,1 raised ValueError: \\udcff ends (act at plain_mine.py:",
    "huge": "rank(s) 0,1 raised ValueError: xxx",
    "huge_class": "rank(s) 0,1 raised XXX",
    "exit_0": "rank 1 ended its process with status 0 without raising, step 1",
    "exit_81": "rank 1 ended its process with status 81 without raising, step 1",
    "exit_82": "rank 1 ended its process with status 82 without raising, step 1",
    "prints": "rank 1 ended its process with status 3 without raising: \ufffd",
    "promises": "rank(s) 0,1 raised FaceError: plain_mine.promises.promises",
}


@pytest.mark.parametrize("name", list(CRASHES))
def test_what_ends_a_rank_is_told_as_the_subjects(two: Fleet, tmp_path: Path, name: str) -> None:
    verdict = judged(two.run(scenario(name)), tmp_path)

    said = verdict.summary.replace("ranks 0,1", "rank(s) 0,1")
    assert verdict.outcome is Outcome.CRASH, verdict.summary
    assert said.startswith(CRASHES[name])
    assert len(said) < 20_000
    said.encode()


@pytest.mark.parametrize("name", ["in_json", "in_numpy_like"])
def test_what_a_library_raised_is_told_by_the_subjects_line(two: Fleet, name: str) -> None:
    assert "(act at plain_mine.py:" in judge(two.run(scenario(name))).summary


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_subject_is_one_in_whatever_folder(two: Fleet, folder: str) -> None:
    module = f"{Path(folder).name}_mine"
    crash = judge(two.run(scenario("in_json", module)))
    sound = two.run(scenario("sound", module))

    assert crash.outcome is Outcome.CRASH
    assert f"(act at {module}.py:" in crash.summary
    assert judge(sound).outcome is Outcome.OK
    callers = {
        event.caller.split(">")[0]
        for rank in sound.ranks
        for event in rank.events
        if isinstance(event, Enter)
    }
    assert callers == {"check_hicache_events", "drain_sends"}


def test_a_class_from_another_module_is_the_subjects(two: Fleet) -> None:
    for name in ("raises", "made"):
        verdict = judge(two.run(scenario(name, "plain_again")))
        assert verdict.outcome is Outcome.CRASH
        assert "(act at plain_mine.py:" in verdict.summary


def test_a_name_that_is_missing_at_the_making_is_a_crash(two: Fleet) -> None:
    verdict = judge(two.run(scenario("Mine", "plain_again")))

    assert verdict.outcome is Outcome.CRASH
    assert "has no attribute 'act'" in verdict.summary


def test_many_calls_in_a_step_are_recorded_to_the_last(two: Fleet) -> None:
    record = two.run(scenario("many"))

    assert judge(record).outcome is Outcome.OK
    assert not any(rank.overflow for rank in record.ranks)
    assert len(record.ranks[0].events) > 16_000


def test_a_log_that_is_full_is_said_plainly(
    two: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_LOG_BYTES_MIN", "_LOG_BYTES_MAX"):
        monkeypatch.setattr(f"testbed.fleet.fleet.{name}", 1 << 20)

    endless = judged(two.run(scenario("endless", deadline_ms=500)), tmp_path / "endless")
    raises = two.run(scenario("many"))

    assert endless.outcome is Outcome.ERROR
    assert endless.summary.startswith(
        "ranks 0,1 recorded more than 1 MiB, what followed is missing"
    )
    assert judge(raises).summary == endless.summary


def test_last_words_are_kept_where_the_log_is_full(
    two: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.fleet.fleet._LOG_BYTES_MIN", 300 * 1024)
    monkeypatch.setattr("testbed.fleet.fleet._LOG_BYTES_MAX", 300 * 1024)
    record = two.run(scenario("filled_up"))

    assert [rank.overflow for rank in record.ranks] == [True, True]
    assert [type(rank.events[-1]) for rank in record.ranks] == [Raised, Raised]


def test_a_rank_that_raises_where_nothing_guards_it_ends_and_is_told() -> None:
    with Fleet(1, hosts="tests.broken_host") as fleet:
        records = [fleet.run(scenario("sound").but(topology=Topology(1, 1))) for _ in range(2)]

    for record in records:
        assert record.trouble == (f"rank 0: RuntimeError: {SAID}",)
        assert judge(record).outcome is Outcome.ERROR


LIFTED = {
    # What the check does first, and how the run is told to have ended.
    "self.wrok_list": (Outcome.CRASH, "raised AbsentAttribute: subject sglang@"),
    "self.given_elsewhere": (
        Outcome.ERROR,
        "self.given_elsewhere is unknown to its class in sglang@",
    ),
    "self.cache_controller.of_tomorrow": (
        Outcome.ERROR,
        "TransferController of testbed.cache.transfers stands in for SGLang's and has no "
        "of_tomorrow (read at hiradix_cache.py:",
    ),
    "unknown_name": (Outcome.CRASH, "raised NameError: name 'unknown_name' is not defined"),
    "[].pop()": (Outcome.CRASH, "raised IndexError: pop from empty list (check_hicache_events at"),
    "time.time()": (Outcome.OK, "every oracle holds"),
}


@pytest.mark.parametrize("folder", ["plain", "torch", "testbed/cache"])
@pytest.mark.parametrize("does", list(LIFTED))
def test_a_checkout_is_judged_alike_in_whatever_folder(
    two: Fleet, tmp_path: Path, folder: str, does: str
) -> None:
    where = tmp_path / folder
    begins = "    def check_hicache_events(self):\n"
    head = HIRADIX_HEAD.replace(begins, f"{begins}        {does}\n")
    for path, text in files(CONFIGURED + head + LATER).items():
        file = where / "sglang/srt" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (where / "sglang/elsewhere.py").write_text("def init(cache): cache.given_elsewhere = 1\n")
    alone = scenario("Mine", topology={"pp": 1, "tp": 1}).but(subject=f"sglang@{where}:hiradix")

    verdict = judged(two.run(alone), tmp_path / "kept")

    outcome, said = LIFTED[does]
    assert verdict.outcome is outcome, verdict.summary
    assert said in verdict.summary
