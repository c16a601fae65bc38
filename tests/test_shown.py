"""What a run recorded cannot write on a terminal or hide in a page: it is shown escaped."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from reports import outputs
from reports.case_page import case_page
from reports.differ import compared
from reports.failure import report
from reports.matrix import Line, Matrix, document, load
from reports.matrix_page import as_html
from reports.matrix_table import errors
from reports.results import error_row, row
from reports.session import keep
from reports.story import story
from reports.table import as_list, for_terminal
from testbed.model import record
from testbed.model.errors import EnvironmentFault, one_line, printable
from testbed.model.events import Begin, Raised
from testbed.model.record import RunRecord
from testbed.sessions.result import RunResult, judged
from tests.record_builder import Model, cut, with_rank

# Title of the window, colour, the screen cleared, a line taken back, text from right to left, C1.
EVIL = "\x1b]0;owned\x07\x1b[31mred\x1b[2J\rgone\b\u202eleft\x9b1A"
SEEN = r"\x1b]0;owned\x07\x1b[31mred\x1b[2J"


def evil_run(folder: Path) -> RunResult:
    """A rank raised that text; so do the scenario's comment and reason, and so it printed."""
    made = Model("pp1tp2", comment=EVIL).record()
    expect = msgspec.structs.replace(made.scenario.expected, why=EVIL)
    made = replace(made, scenario=made.scenario.but(expect=expect), trouble=())
    made = cut(made, 0, lambda one: isinstance(one, Begin) and one.step == 2)
    text = f'Traceback\n  File "/x/mine.py", line 7, in check\n    {EVIL}\nKeyError: {EVIL}\n'
    raised = Raised(2, 0, "KeyError", EVIL, text, "")
    events = (*made.ranks[0].events, raised)
    made = with_rank(made, 0, exit="raised", events=events, output=EVIL, stack=text)
    record.save(made, folder)
    return judged(made, folder)


def is_clean(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


@pytest.fixture
def evil(tmp_path: Path) -> RunResult:
    return evil_run(tmp_path / "runs" / "evil")


def test_the_text_itself_is_escaped_and_what_is_harmless_stays() -> None:
    assert printable(EVIL).startswith(SEEN)
    assert is_clean(printable(EVIL))
    assert printable("naïve ✓ 漢字\n\tand a tab") == "naïve ✓ 漢字\n\tand a tab"
    assert is_clean(one_line(f"a\n{EVIL}"))
    assert is_clean(str(EnvironmentFault(EVIL)))


def test_nothing_a_terminal_is_shown_of_a_run_controls_it(evil: RunResult) -> None:
    made = row(evil)
    shown = {
        "table": for_terminal([made], 200),
        "failure": report(made, outputs.outputs(evil, "all")),
        "explain": story(evil),
        "explain --full": story(evil, full=True),
        "diff": compared(evil, judged(Model("pp1tp2").record(), evil.path)).told,
        "list": as_list([("name", EVIL)]),
        "matrix": "\n".join(errors([error_row(evil.scenario, EVIL)])),
    }
    assert [name for name, text in shown.items() if not is_clean(text)] == []
    for name in ("failure", "explain", "explain --full", "list", "matrix"):
        assert SEEN in shown[name], name


def test_nothing_a_session_keeps_to_be_read_holds_it_raw(evil: RunResult, tmp_path: Path) -> None:
    keep([row(evil)], 2, tmp_path)
    for file in ("summary.md", "junit.xml", "index.html", "results.json"):
        assert is_clean((tmp_path / file).read_text()), file
    page = case_page(row(evil), evil, "")
    assert is_clean(page)
    assert SEEN in page


def test_a_matrix_file_of_somebody_else_is_shown_escaped_as_well(
    evil: RunResult, tmp_path: Path
) -> None:
    cell = row(evil) | {"summary": EVIL}
    line = Line(evil.scenario.name, "pp1tp2", EVIL, EVIL)
    made = Matrix(
        world=2, out="", subjects=[cell["subject"]], scenarios=[line], cells=[cell], unfit=[]
    )
    assert is_clean(as_html(made))
    file = tmp_path / "matrix.json"
    file.write_text(json.dumps(document(made)))
    (loaded,) = load(file).cells
    assert is_clean(loaded["summary"])


def test_what_ranks_left_behind_is_told(tmp_path: Path) -> None:
    made: RunRecord = with_rank(Model("pp1tp2").record(), 1, left=2)
    record.save(made, tmp_path)
    result = judged(record.load(tmp_path), tmp_path)
    assert row(result)["notes"][-1] == "rank 1 left 2 processes behind: ended"
    assert "rank 1 left 2 processes behind: ended" in story(result)


def test_the_data_of_a_matrix_has_its_comments_escaped() -> None:
    lines = [Line("one", "pp2tp2", comment="\x1b[2J \u202e \x9b31m é")]
    matrix = Matrix(world=4, out="out", subjects=["batched"], scenarios=lines, cells=[])
    [line] = document(matrix)["scenarios"]
    assert line["comment"] == r"\x1b[2J \u202e \x9b31m é"
