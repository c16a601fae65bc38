"""Planted bugs: what each says of itself, that each has its scenario, and the ground they stand on.

That they are caught is shown on real ranks, in ``cases/bugs``.
"""

from pathlib import Path

import pytest

from testbed import subjects
from testbed.model.errors import BadInput
from testbed.model.events import Enter
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome
from testbed.sessions import catalog
from testbed.subjects import bugs
from testbed.subjects.bugs.entering import PerRequestChecks
from tests.rig import Rig, of_kind, run_ranks

NAMES = sorted(bugs.REGISTRY)
SCENARIOS = catalog.load(["bug-*"])


@pytest.mark.parametrize("name", NAMES)
def test_a_bug_names_its_report_and_its_mistake_in_one_line(name: str) -> None:
    planted = bugs.find(f"bug:{name}")

    assert "#" in planted.report
    assert 0 < len(planted.summary) <= 80
    assert "\n" not in planted.summary


@pytest.mark.parametrize("name", NAMES)
def test_a_bug_has_a_scenario_that_says_what_must_name_it_and_why(name: str) -> None:
    of_bug = [one for one in SCENARIOS if one.subject == f"bug:{name}"]

    assert of_bug
    for scenario in of_bug:
        expected = scenario.expected
        assert scenario.name.startswith(f"bug-{name}")
        assert expected.verdict not in (Outcome.OK, Outcome.ERROR)
        assert expected.oracle or expected.verdict in (Outcome.CRASH, Outcome.DEADLOCK)
        assert expected.step is not None
        assert expected.why


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_what_is_right_in_a_bugs_scenario_is_never_violated_there(scenario: Scenario) -> None:
    sound = bugs.sound(scenario.subject)

    expected = scenario.but(subject=sound).expected

    assert not sound.startswith(bugs.PREFIX)
    assert expected.verdict in (Outcome.OK, Outcome.DEGRADED)
    assert expected.why


def test_every_bug_is_listed_with_its_mistake_and_its_report() -> None:
    listed = subjects.available()

    assert listed["bug:max-for-min"] == "MAX where MIN is meant (#27489)"
    assert {f"bug:{name}" for name in NAMES} <= listed.keys()


def test_an_unknown_bug_is_bad_input() -> None:
    with pytest.raises(BadInput, match="planted bug 'bug:gremlin' is unknown"):
        subjects.check("bug:gremlin")


@pytest.mark.parametrize("name", NAMES)
def test_a_bug_promises_what_it_is_made_of_promises(name: str) -> None:
    planted = bugs.find(f"bug:{name}")
    protocol = getattr(planted, "made_of", planted)

    promised = Rig(f"bug:{name}").subject.promises

    assert promised.get("stage-local", False) == protocol.stage_local
    if not issubclass(planted, PerRequestChecks):  # these promise no budget
        assert promised["budget"] == protocol.name


def test_a_check_per_request_is_sound_as_long_as_every_rank_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ground of the bugs about requests: without their mistake the ranks stay in step."""
    monkeypatch.setitem(bugs.REGISTRY, "ground", PerRequestChecks)

    def body(rig: Rig) -> None:
        rig.write([1])
        rig.step(3)

    events = run_ranks(Topology.parse("pp2tp2"), "bug:ground", body, tmp_path, storage=True)

    for peers in (events[:2], events[2:]):
        entered = [
            [(one.op, one.caller) for one in of_kind(rank, Enter) if one.op == "all_reduce"]
            for rank in peers
        ]
        assert entered[0] == entered[1]
        assert sum("check_prefetch_progress" in caller for _, caller in entered[0]) == 6
