"""The sensitivity table, from made-up records."""

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.measure.sensitivity import gloo_said, main
from testbed.model import record
from testbed.model.events import Raised
from testbed.model.exit_status import AS_EXPECTED, BAD_INPUT, NOT_AS_EXPECTED
from testbed.model.record import RankRecord, RunRecord
from testbed.model.scenario import Expect
from testbed.model.verdict import Outcome
from tests.fake_fleet import clean, killed, scenario

SIGABRT = 6
ABORTED = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 24 vs 20\n"
)
BUG = scenario("bug-no-wait", subject="bug:no-wait")


def with_share(share: RankRecord) -> RunRecord:
    run = killed(BUG, 1)
    return replace(run, ranks=tuple(share if one.rank == 1 else one for one in run.ranks))


def raised(message: str, inside: str) -> RunRecord:
    event = Raised(0, 0, "RuntimeError", message, "", inside)
    return with_share(RankRecord(1, "raised", (event,)))


def kept(folder: Path, *runs: RunRecord) -> str:
    for place, run in enumerate(runs):
        record.save(run, folder / "runs" / str(place))
    return str(folder)


def test_a_process_that_gloo_ended_is_something_gloo_said() -> None:
    run = with_share(RankRecord(1, "signal", (), signal=SIGABRT, output=ABORTED))

    assert gloo_said(run) == "rank 1 ended: op.preamble.length <= op.nbytes. 24 vs 20"


def test_an_exception_out_of_a_call_is_something_gloo_said() -> None:
    run = raised("[enforce fail at reduce.cc:9] ranks disagree", "all_reduce")

    assert gloo_said(run) == "rank 1 raised in all_reduce: ranks disagree"


@pytest.mark.parametrize(
    "run",
    [
        clean(BUG),
        killed(BUG, 1),
        raised("[pair.cc:553] Connection closed by peer [127.0.0.1]:4242", "all_reduce"),
        raised("pop from empty list", ""),
    ],
    ids=["nothing happened", "killed by another", "lost connection", "the subject's own"],
)
def test_what_is_not_gloos_complaint_is_silence(run: RunRecord) -> None:
    assert gloo_said(run) == ""


def test_a_bug_that_is_not_caught_fails_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = clean(BUG.but(expect=Expect(Outcome.VIOLATION, oracle="safety")))

    status = main([kept(tmp_path, missed)])

    told = capsys.readouterr().out
    assert status == NOT_AS_EXPECTED
    assert "✗ NO" in told
    assert "1 runs of 1 planted bugs: 0 caught; gloo said nothing in 1 runs (1 bugs)" in told
    assert "not run: any-ready, " in told


def test_the_table_is_kept_in_the_sessions_folder_without_the_sound_runs(tmp_path: Path) -> None:
    caught = killed(BUG.but(expect=Expect(Outcome.CRASH)), 1)

    status = main([kept(tmp_path, caught, clean(scenario("bug-no-wait")))])

    lines = (tmp_path / "sensitivity.md").read_text(encoding="utf-8").splitlines()
    assert status == AS_EXPECTED
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if "| no-wait" in line]
    assert [row[1:6] for row in cells] == [["no-wait", "#33473", "yes", "crash", "0"]]


def test_a_session_without_planted_bugs_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([kept(tmp_path, clean(scenario()))]) == BAD_INPUT
    assert "no planted bug was run there" in capsys.readouterr().err
