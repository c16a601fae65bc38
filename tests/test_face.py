"""What a class of one's own lacks is told as its mistake, with its name, and not the testbed's."""

from collections.abc import Callable
from typing import Any

import pytest

from testbed.model.scenario import CallSpec, Scenario
from testbed.model.topology import Topology
from testbed.protocols import Batched, Groups
from testbed.rank.assemble import RankContext, assemble
from testbed.rank.blame import trouble_of
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock
from testbed.subjects.face import FaceError
from testbed.subjects.minimal import MinimalSubject
from tests.rig import Rig

NAME = f"{__name__}:make"


class Mine(MinimalSubject):
    """Sound, until a test changes a member of it."""


class Bare:
    """Has nothing of a subject but its check."""

    def check_hicache_events(self) -> None:
        """Nothing."""


made: type = Mine


def make(cache: Any, controller: Any, groups: Groups, scenario: Scenario) -> object:
    """The subject of a rank."""
    if made is Mine:
        return Mine(cache, controller, Batched(groups), scenario.storage, ())
    return made()


def context(*calls: CallSpec) -> RankContext:
    scenario = Scenario(
        name="face",
        topology=Topology(),
        subject=NAME,
        workload={"kind": "scripted", "writes": [{"at": 0}]},
        calls=list(calls),
    )
    clock = Clock()
    groups = Groups(scenario.topology, 0, None, None, None, None)
    return assemble(scenario, 0, clock, ListRecorder(clock), groups)


def told(act: Callable[[], object]) -> str:
    """The mistake in one line, once it is seen that it counts as the subject's."""
    with pytest.raises(FaceError) as raised:
        act()
    assert trouble_of(raised.value, NAME) == ""
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("lacking", ["write", "load", "backup", "prefetch"])
def test_a_key_that_pending_lacks_is_named_with_the_class(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    all_but: dict[str, list[int]] = {
        name: [] for name in ("write", "load", "backup", "prefetch") if name != lacking
    }
    monkeypatch.setattr(Mine, "pending", lambda _: all_but)

    assert told(context().run_step) == (
        f"{__name__}.Mine.pending() lacks the key {lacking!r}: "
        "give all of write, load, backup, prefetch, an empty list where there is nothing"
    )


@pytest.mark.parametrize(
    ("pending", "said"),
    [
        (None, "Mine.pending() returned None: give a dict of lists"),
        ({"write": 3}, "Mine.pending() has 3 for 'write': give a list of int"),
        ({"write": ["n7"]}, "Mine.pending() has ['n7'] for 'write': give a list of int"),
        (
            {"write": [], "load": [], "backup": [], "prefetch": "r0"},
            "Mine.pending() has 'r0' for 'prefetch': give a list of str",
        ),
    ],
)
def test_what_pending_may_not_return_is_told_with_the_class(
    monkeypatch: pytest.MonkeyPatch, pending: object, said: str
) -> None:
    monkeypatch.setattr(Mine, "pending", lambda _: pending)

    assert told(context().run_step) == f"{__name__}.{said}"


def test_a_number_of_sends_that_is_none_is_told_with_the_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mine, "outstanding_sends", lambda _: None)

    assert "Mine.outstanding_sends() returned None: give a whole" in told(context().run_step)


def test_a_member_that_is_missing_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{__name__}.made", Bare)

    assert told(context) == (
        f"{__name__}.Bare lacks promises: docs/own_subject.md lists what a subject has"
    )


def test_promises_that_are_no_dict_are_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mine, "__init__", lambda self, *_: setattr(self, "promises", ["budget"]))
    monkeypatch.setattr(Mine, "controller", None, raising=False)

    assert "Mine.promises is ['budget']: give a dict" in told(context)


def test_a_call_that_the_class_does_not_have_is_its_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mine, "calls", {}, raising=False)

    assert told(lambda: context(CallSpec("flush"))) == (
        f"{__name__}.Mine has no flush to call (it has: none)"
    )


def test_a_class_that_keeps_to_the_face_is_left_alone() -> None:
    rank = context()
    for _ in range(2):
        rank.run_step()
    rank.finish()


class Roomless:
    """Takes nothing of what a subject is made of."""


def test_a_class_that_takes_other_arguments_is_its_own_mistake() -> None:
    told = r"cannot be called with \(cache, controller, groups, scenario\)"
    with pytest.raises(FaceError, match=told):
        Rig(f"{__name__}:Roomless")
