"""A message's tag is told by the letters it is made of, everywhere alike."""

from dataclasses import replace

import pytest

from reports.perfetto import trace
from testbed.model.events import Enter, Event
from testbed.model.record import RunRecord
from testbed.model.topology import told_tag
from testbed.oracles import judge
from testbed.protocols.agreement import TAG
from tests.record_builder import Model, changed, cut, with_events


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        (TAG, "'kvAg'"),
        (1349535849, "'PpHi'"),
        (0x7E7E7E7E, "'~~~~'"),
        (0, "0"),
        (77, "77"),
        (0x41, str(0x41)),
        (0x414243, str(0x414243)),
        (0x41422043, str(0x41422043)),  # a space among them would be lost in a line
        (0x4142437F, str(0x4142437F)),
        (0xC3A4C3B6, str(0xC3A4C3B6)),
        (0x4142434445, str(0x4142434445)),
    ],
)
def test_four_letters_are_told_as_such_and_any_other_tag_as_a_number(tag: int, told: str) -> None:
    assert told_tag(tag) == told


def tagged(record: RunRecord, tag: int, rank: int) -> RunRecord:
    """The record with that tag on all messages of the rank."""
    return with_events(
        record,
        rank,
        lambda events: [
            one._replace(tag=tag) if isinstance(one, Enter) and one.tag >= 0 else one
            for one in events
        ],
    )


def both_tagged() -> RunRecord:
    return tagged(tagged(Model("pp2tp1").record(), TAG, 0), TAG, 1)


def test_a_divergence_names_its_pipe_by_the_letters() -> None:
    record = changed(both_tagged(), 1, Enter, 2, lambda one: one._replace(dtype="int64"))

    first = judge(record).first_divergence

    assert first is not None
    assert first.channel == "pp[tp0] 0->1 tag 'kvAg'"


def test_a_deadlock_and_the_tag_at_the_other_end_are_told_by_the_letters() -> None:
    record = replace(Model("pp2tp1").record(), promises={}, ended="deadlock")
    for rank in (0, 1):
        record = cut(record, rank, _message, exit="stopped")
    record = changed(record, 0, Enter, 0, lambda one: one._replace(op="send"))

    verdict = judge(tagged(tagged(record, TAG, 0), 1349535849, 1))

    assert "rank 0 waits in send #0 of pp[tp0] tag 'kvAg' " in verdict.summary
    assert "rank 1 waits in recv #0 of pp[tp0] tag 'PpHi' " in verdict.summary
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.did["1"].endswith(", under tag 'PpHi'")


def _message(event: Event) -> bool:
    return isinstance(event, Enter) and event.tag >= 0


def test_a_trace_of_the_run_shows_the_letters() -> None:
    args = [event.get("args", {}) for event in trace(both_tagged())["traceEvents"]]

    assert {each["tag"] for each in args if each.get("tag")} == {"'kvAg'"}
