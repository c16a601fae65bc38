"""What a scenario has the ranks' loop call besides the check, and how oracles take it."""

from typing import Any

import msgspec
import pytest

from testbed import subjects
from testbed.analysis.view import RankView
from testbed.model.errors import BadInput
from testbed.model.events import Answer, Call, Event
from testbed.model.record import RankRecord
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.rank.assemble import assemble
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock
from testbed.sessions import catalog, execute
from tests.rig import ALONE, at_hand, of_kind


def scenario(*calls: dict[str, Any], **changes: Any) -> Scenario:
    given = {
        "name": "calls",
        "topology": {},
        "storage": True,
        "steps": 6,
        "workload": {"kind": "scripted", "prefetches": [{"at": 1}], "writes": [{"ready_after": 4}]},
        "calls": list(calls),
        **changes,
    }
    return msgspec.convert(given, Scenario)


def ran(case: Scenario) -> list[Event]:
    clock = Clock()
    recorder = ListRecorder(clock)
    context = assemble(case, 0, clock, recorder, ALONE)
    for _ in range(case.steps):
        context.run_step()
    context.finish()
    return recorder.events


def test_a_call_is_made_in_its_steps_and_on_its_ranks_only() -> None:
    flush = {"call": "flush", "from_step": 2, "until_step": 4}

    made = [event.step for event in of_kind(ran(scenario(flush)), Call)]
    elsewhere = of_kind(ran(scenario({**flush, "on": {"rank": 1}})), Call)

    assert made == [2, 3]
    assert elsewhere == []


def test_a_question_is_put_from_the_request_on_until_the_answer_is_yes() -> None:
    case = scenario({"call": "prefetch-check"}, prefetch={"policy": "wait_complete"})

    told = [(event.step, event.key, event.answer) for event in of_kind(ran(case), Answer)]

    # Asked for and allocated in step 1, under way from 2 on: the pages arrive in steps 3 and 4.
    assert told[-1] == (4, "f0", "yes")
    assert [answer for _, _, answer in told[:-1]] == ["no"] * (len(told) - 1)
    assert told[0][0] == 1


def test_a_question_can_be_about_some_requests_only() -> None:
    case = scenario({"call": "prefetch-check", "only": ["f7"]})

    assert of_kind(ran(case), Call) == []


def test_what_a_release_does_not_have_is_refused_before_anything_runs() -> None:
    case = scenario({"call": "flush"}, subject=at_hand("sglang==0.5.19"))

    with pytest.raises(BadInput, match=r"sglang==0\.5\.19 has no flush to call \(it has: write-"):
        execute.prepare(case)
    subjects.check_calls("batched", ["flush"])


@pytest.mark.parametrize(
    ("subject", "changes", "said"),
    [
        ("sglang==0.5.12", {}, "has no part for storage"),
        ("sglang==0.5.18:hiradix", {"sidecars": [{"name": "swa"}]}, "has no pools beside"),
        ("sglang==0.5.18:hiradix", {"faults": [{"kind": "extra-pool"}]}, "has no pools beside"),
        ("sglang==0.5.18:hiradix", {"faults": [{"kind": "no-controller"}]}, "always has a trans"),
    ],
)
def test_what_a_class_has_no_part_for_is_refused_before_anything_runs(
    subject: str, changes: dict[str, Any], said: str
) -> None:
    case = scenario(subject=at_hand(subject), **changes)

    with pytest.raises(BadInput, match=rf"scenario calls: subject {subject} {said}"):
        execute.prepare(case)


@pytest.mark.parametrize(
    ("subject", "changes"),
    [
        ("sglang==0.5.12", {"storage": False, "workload": {"kind": "scripted"}}),
        ("sglang==0.5.12:hiradix", {}),
        ("sglang==0.5.13", {"sidecars": [{"name": "swa"}]}),
        ("sglang==0.5.18", {"faults": [{"kind": "no-controller"}]}),
        ("batched", {"faults": [{"kind": "no-controller"}], "sidecars": [{"name": "swa"}]}),
    ],
)
def test_what_a_class_has_a_part_for_is_let_through(subject: str, changes: dict[str, Any]) -> None:
    execute.prepare(scenario(subject=at_hand(subject) if "==" in subject else subject, **changes))


def test_operations_and_queries_inside_a_call_are_told_from_the_checks_own() -> None:
    events = ran(scenario({"call": "flush", "from_step": 2, "until_step": 3}))

    view = RankView(RankRecord(0, "done", tuple(events)))

    assert [len(view.at(step).asked) for step in range(4)] == [0, 0, 1, 0]
    assert [len(view.at(step).queries) for step in range(4)] == [1, 1, 1, 1]
    assert view.calls == {"flush"}


def test_prefetches_without_storage_and_pages_that_nobody_asks_for_are_bad_input() -> None:
    with pytest.raises(BadInput, match="prefetches lists items but storage is off"):
        ran(scenario(storage=False))
    with pytest.raises(BadInput, match=r"prefetches\[0\]\.found is 3: give pages from 0 to 2"):
        ran(scenario(workload={"kind": "scripted", "prefetches": [{"found": 3}]}))


def test_every_topology_at_which_a_call_names_nobody_is_left_out() -> None:
    case = scenario({"call": "flush", "on": "followers"}, topology={"pp": 2})

    (kept,) = catalog.spread(case, [Topology(pp=1, tp=2), Topology(pp=2)])

    assert kept.topology == Topology(pp=2)
