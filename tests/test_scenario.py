"""Scenario files: what is wrong with one is said with what would be right; expectations choose."""

import pytest

from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario, from_object, to_object
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome

PLAIN = {"name": "plain", "topology": {"pp": 2, "tp": 2}, "workload": {"kind": "scripted"}}


def read(**changes: object) -> Scenario:
    return from_object({**PLAIN, **changes}, "plain.json")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stepz": 1}, "unknown field `stepz`: give any of name, topology, workload"),
        ({"topology": {"x": 1}}, "`$.topology`: give any of pp, tp, cp"),
        ({"expect": [{"verdict": "ok", "subjects": "*"}]}, "give any of verdict, oracle, step"),
        ({"expect": {"verdict": "fine"}}, "give one of ok, degraded, violation"),
        ({"device": "tpu"}, "give one of cpu, cuda"),
    ],
)
def test_what_is_wrong_is_told_with_what_would_be_right(
    changes: dict[str, object], told: str
) -> None:
    with pytest.raises(BadInput) as refused:
        read(**changes)
    assert str(refused.value).startswith("plain.json: ")
    assert told in str(refused.value)


def test_the_first_expectation_that_applies_counts_and_brings_its_own_deadline() -> None:
    hang = {"subject": "sglang*", "pp": [2], "verdict": "hang", "deadline_ms": 300}
    stated = read(deadline_ms=9000, expect=[hang, {"verdict": "degraded"}])
    release = stated.but(subject="sglang==0.5.19")

    assert (release.expected.verdict, release.patience_ms) == (Outcome.HANG, 300)
    assert (stated.expected.verdict, stated.patience_ms) == (Outcome.DEGRADED, 9000)
    assert release.but(topology=Topology(4, 1)).expected.verdict is Outcome.DEGRADED


def test_without_an_expectation_a_clean_run_is_expected() -> None:
    assert read().expected.verdict is Outcome.OK


def test_a_scenario_survives_its_file() -> None:
    scenario = read(steps=5, faults=[{"kind": "never-ready"}], expect={"verdict": "hang"})
    assert from_object(to_object(scenario), "again") == scenario
