"""The list of keys is read off the very Structs that read scenario files."""

from testbed.cli.keys import every_key
from testbed.model.scenario import Scenario


def test_every_key_of_a_scenario_is_listed_with_its_default() -> None:
    listed = {key.name: key for key in every_key() if key.of == "scenario"}

    assert set(listed) == set(Scenario.__struct_fields__)
    assert listed["name"].default == ""
    assert listed["steps"].default == "8"
    assert listed["device"].takes == "cpu | cuda"


def test_the_keys_of_every_fault_and_workload_are_listed_but_for_the_kind() -> None:
    of = {key.of for key in every_key()}

    assert {"fault slow-events", "workload prefill", "scripted storage[]", "expect"} <= of
    assert not [key for key in every_key() if key.name == "kind"]
