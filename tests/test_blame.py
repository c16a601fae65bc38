"""Whose fault an exception on a rank is, the subject's or the testbed's own, and what is kept of
it.
"""

import builtins
import json
import linecache
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from reports import story
from testbed import faults, protocols, workloads
from testbed.cache import KVCache, TransferController
from testbed.cache.pools import HostPools
from testbed.cache.transfers import LayerDone
from testbed.model.scenario import select
from testbed.model.topology import Topology
from testbed.rank.blame import last_words, trouble_of
from testbed.recorder import ownership
from testbed.recorder.ownership import Owner
from testbed.scripted_events import FakeEvent
from testbed.subjects import minimal
from testbed.subjects.sglang import hiradix, seams, step_time
from testbed.subjects.sglang.by_id import TreeCore
from testbed.subjects.sglang.by_node import NodeFace
from testbed.workloads import traffic

RELEASE = "sglang==0.5.23"
LIFTED = "sglang-9.8.7/srt/mem_cache/blame_cache.py"


@pytest.fixture(autouse=True)
def _lifted() -> None:
    ownership.claim_file(LIFTED)


def defined(source: str, file: str = LIFTED) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, file, "exec"), namespace)
    return namespace


def failure(act: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 -- whatever it raises
        act()
    return raised.value


def reading(name: str, of: object) -> BaseException:
    """What reading a name that the object does not have raises, out of the subject's code."""
    check = defined(f"def check(it): return it.{name}")["check"]
    return failure(lambda: check(of))


STAND_INS = [
    TransferController.__new__(TransferController),
    KVCache.__new__(KVCache),
    HostPools.__new__(HostPools),
    FakeEvent.__new__(FakeEvent),
    TreeCore.__new__(TreeCore),
    NodeFace.__new__(NodeFace),
    seams.TICKET,
    step_time,
    hiradix.HIRADIX.stand_ins["StorageMedium"],
]


@pytest.mark.parametrize("stand_in", STAND_INS, ids=lambda one: type(one).__name__)
def test_a_name_that_only_our_stand_in_lacks_is_no_fault_of_lifted_code(stand_in: object) -> None:
    said = trouble_of(reading("of_tomorrow", stand_in), RELEASE)

    assert "has no of_tomorrow (read at blame_cache.py:1): if SGLang's own has it, tell us" in said


def test_it_names_the_class_of_the_stand_in() -> None:
    said = trouble_of(reading("of_tomorrow", STAND_INS[0]), RELEASE)

    assert said.startswith("TransferController of testbed.cache.transfers stands in for SGLang's")


def test_nor_is_it_where_lifted_code_raised_another_exception_because_of_it() -> None:
    source = """
def check(it):
    try:
        it.of_tomorrow
    except AttributeError as error:
        raise RuntimeError("no storage") from error
"""
    check = defined(source)["check"]
    assert "has no of_tomorrow" in trouble_of(failure(lambda: check(STAND_INS[0])), RELEASE)


@pytest.mark.parametrize(
    "theirs", [None, queue.Queue(), SimpleNamespace(), type("Theirs", (), {})()]
)
def test_a_name_that_an_object_of_its_own_lacks_is_the_mistake_of_lifted_code(
    theirs: object,
) -> None:
    assert trouble_of(reading("of_tomorrow", theirs), RELEASE) == ""


def test_a_call_that_only_our_stand_in_refuses_is_no_fault_of_lifted_code() -> None:
    source = """
def check(it):
    it.append_host_mem_release(
        None, of_tomorrow=1)
"""
    linecache.cache[LIFTED] = (len(source), None, source.splitlines(keepends=True), LIFTED)
    check = defined(source)["check"]
    theirs = type("Theirs", (), {"append_host_mem_release": lambda self, pages: None})()

    said = trouble_of(failure(lambda: check(STAND_INS[0])), RELEASE)

    assert said.startswith(
        "TransferController.append_host_mem_release of testbed.cache.transfers stands in for"
    )
    assert "unexpected keyword argument 'of_tomorrow' (read at blame_cache.py:3)" in said
    assert trouble_of(failure(lambda: check(theirs)), RELEASE) == ""
    # One that came through, and raised inside, was called as it wants to be.
    within = defined("def check(it): return it.add([], None)")["check"]
    assert trouble_of(failure(lambda: within(LayerDone({}, []))), RELEASE) == ""


def test_in_a_class_of_ones_own_it_is_a_mistake_like_any_other() -> None:
    for stand_in in STAND_INS:
        assert trouble_of(reading("ack_of_tomorrow", stand_in), "mine:Mine") == ""


def test_what_lifted_code_imports_while_it_runs_is_not_at_hand() -> None:
    check = defined("def check():\n    import sglang.srt.of_tomorrow")["check"]

    said = trouble_of(failure(check), RELEASE)

    assert "'sglang'" in said
    assert "(read at blame_cache.py:2)" in said
    assert trouble_of(failure(check), "mine:Mine") == ""


# Whose code it is


@pytest.mark.parametrize(
    "folder", ["torch", "testbed", "testbed/cache", "testbed/world", "python3.11/threading", "site"]
)
def test_a_folder_is_not_known_by_its_name(tmp_path: Path, folder: str) -> None:
    file = tmp_path / folder / "mine.py"
    file.parent.mkdir(parents=True)
    file.write_text("def check(): return json.loads('{')\nimport json\n")
    namespace = defined(file.read_text(), str(file))

    error = failure(namespace["check"])

    assert ownership.of_file(str(file)) is Owner.SUBJECT
    assert trouble_of(error, "mine:Mine") == ""
    # What it called in the standard library is told by the line that called.
    assert next(one for one in last_words(error).frames if one.is_subjects).site == "mine.py:1"
    assert not last_words(error).frames[0].is_subjects


def test_every_package_of_ours_and_of_others_is_known_by_its_folder() -> None:
    owners = {
        json: Owner.STANDARD,
        threading: Owner.STANDARD,
        msgspec: Owner.INSTALLED,
        torch.distributed: Owner.TORCH,
        story: Owner.TESTBED,
        workloads: Owner.TESTBED,
        traffic: Owner.MODEL,
        faults: Owner.FAULT,
        protocols: Owner.SUBJECT,
        minimal: Owner.SUBJECT,
    }
    assert {module: ownership.of_object(module) for module in owners} == owners


def test_generated_code_is_its_modules() -> None:
    code = compile("1 / 0", "<string>", "eval")
    anywhere = failure(lambda: eval(code, {}))
    in_torch = failure(lambda: eval(code, {"__file__": torch.__file__}))

    owners = [ownership.of_frame(ownership.raised_in(error)[-1]) for error in (anywhere, in_torch)]
    assert owners == [Owner.SUBJECT, Owner.TORCH]


def test_a_failure_that_never_passed_through_the_subject_is_the_testbeds() -> None:
    error = failure(lambda: select(object(), Topology()))  # type: ignore[arg-type]
    trace = error.__traceback__
    # This test is nobody's code either; only what lies below it counts.
    while trace is not None and ownership.of_frame(trace.tb_frame) is not Owner.TESTBED:
        trace = trace.tb_next

    said = trouble_of(error.with_traceback(trace), "mine:Mine")

    assert said.startswith(f"{type(error).__name__}: ")


def test_the_frames_of_a_stack_are_told_apart_as_those_of_an_exception(tmp_path: Path) -> None:
    mine = tmp_path / "torch" / "mine.py"
    dump = f"""Current thread 0x00007f (most recent call first):
  File "{queue.__file__}", line 171 in get
  File "{mine}", line 12 in spin
  File "{LIFTED}", line 7 in check
  File "{Path(ownership.__file__).parent}/world/rank.py", line 60 in run_rank
"""
    assert [tuple(one) for one in ownership.of_stack(dump)] == [
        ("get", "queue.py:171", False),
        ("spin", "mine.py:12", True),
        ("check", "blame_cache.py:7", True),
        ("run_rank", "rank.py:60", False),
    ]


# What is kept of it, whatever it is


class Mute(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Deaf(Exception):
    """Nor this one's, and what it raises is no Exception."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


HUGE = type("X" * 1_000_000, (Exception,), {})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Mute(), "<ValueError was raised when this was asked for>"),
        (Deaf(), "<KeyboardInterrupt was raised when this was asked for>"),
        (ValueError("\udcff\0 ends"), "\\udcff\0 ends"),
        (HUGE("short"), "short"),
        (SystemExit(0), "0"),
        (KeyboardInterrupt(), ""),
    ],
    ids=["mute", "deaf", "surrogate", "huge class", "SystemExit", "KeyboardInterrupt"],
)
def test_the_words_of_any_exception_can_be_written(error: BaseException, said: str) -> None:
    def check() -> None:
        raise error

    words = last_words(failure(check))

    assert words.message == said
    assert len(words.type) < 300
    assert len(words.traceback) < 70_000
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(words))[1] == said


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    words = last_words(ValueError(f"first {'x' * 50_000_000} last"))

    assert words.message.startswith("first xxx")
    assert words.message.endswith("xxx last")
    assert len(words.message) < 10_000


def test_a_recursion_is_told_by_its_end() -> None:
    def again(depth: int) -> int:
        return again(depth + 1)

    words = last_words(failure(lambda: again(0)))

    assert words.type == "RecursionError"
    assert words.frames[0].function == "again"
    assert len(words.frames) < 100


def test_a_group_is_the_subjects_where_one_of_it_is() -> None:
    group = getattr(builtins, "ExceptionGroup", None)
    if group is None:
        pytest.skip("Python 3.10 has no groups")
    inner = failure(defined("def check(): raise KeyError('w0')")["check"])
    outer = group("several", [ValueError("never raised"), inner])

    assert trouble_of(outer, "mine:Mine") == ""
    subjects = [one.site for one in last_words(outer).frames if one.is_subjects]
    assert subjects[0] == "blame_cache.py:1"
