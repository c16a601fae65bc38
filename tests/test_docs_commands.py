"""Every command shown in README.md, CONTRIBUTING.md and docs/ exists. Those in shell blocks are
run, except for the ones listed here with the reason.
"""

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.rig import at_hand
from tests.shown_commands import LIMIT_S, PAGES, ROOT, Absent, Shown, all_shown, check, shown_on
from tests.test_layout import FLOORS

SHOWN = all_shown()
BLOCKS = sorted({shown.text for shown in SHOWN if shown.block})

NOT_RUN = {
    "make *": "takes minutes, or this test would run inside itself: `make -n` instead",
    "PIP_EXTRA_INDEX_URL=* make *": "the same",
    "pytest cases *": "starts a session of minutes: collected instead",
    "python -m launchers.torchrun_node *": "waits for a controller: tests/test_nodes.py runs it",
    "python -m testbed run *--listen*": "waits for other nodes: tests/test_nodes.py runs it",
    "python -m testbed bench --world 4 --nodes 2 *": "waits for other nodes",
    "python -m testbed run *--backend nccl*": "needs a GPU: tests/test_nccl.py runs it",
    "python -m testbed.measure.bench_copies": "needs a GPU",
    "python -m testbed run seed-counts --pp 8 --tp 8 *": "64 processes",
    "python -m testbed bench *": "measures for minutes: tests/test_bench.py runs each section",
    "python -m testbed subjects fetch *": "downloads: tests/test_sglang_fetch.py runs it",
    "python -m testbed * sglang@~/sglang*": "needs a checkout: tests/test_subjects.py runs one",
    "python -m testbed *-sglang@~/sglang-*": "the run of a checkout, see above",
    "python -m testbed matrix --subjects sglang*": "tests/test_matrix.py runs releases",
}
"""Shell-block commands that are parsed but not run, as globs, each with its reason."""

CLI = (
    ("python -m testbed doctor", 0),
    ("python -m testbed list", 0),
    ("python -m testbed list keys", 0),
    ("python -m testbed run seed-counts", 0),
    (
        "python -m testbed run 'empty-follower-*' --subject batched --pp 2 --tp 2 --world 4"
        " --json OUT.json",
        0,
    ),
    ("python -m testbed explain seed-counts-batched-pp2tp2 --full", 0),
    ("python -m testbed replay seed-counts-batched-pp2tp2", 0),
    ("python -m testbed recheck seed-counts-batched-pp2tp2", 0),
    (
        "python -m testbed diff seed-counts-batched-pp2tp2 empty-follower-load-batched-pp2tp2",
        1,
    ),
    ("python -m reports.timeline seed-counts-batched-pp2tp2 OUT.svg", 0),
    (
        "python -m testbed matrix --subjects batched,separate --scenarios 'claim-*'"
        " --json OUT.json",
        0,
    ),
    ("python -m testbed compare separate batched --scenarios 'claim-*' --strict-ops", 0),
)
"""Run in this order in one folder, each with its exit status: later ones take runs of earlier."""

ALONE = (
    "python -m testbed run mine.json",
    "python -m testbed run seed-counts --subject mine:make",
    "python -m testbed.workloads --requests 300 --seed 0",
    "python -m testbed run empty-follower-write --subject 'sglang==0.5.23'",
    "python -m testbed explain 'empty-follower-write-sglang==0.5.23-pp2tp2'",
)
"""Run by tests of their own below."""


def canonical(command: str) -> str:
    return shlex.join(shlex.split(command))


def ran(command: str, folder: Path, status: int = 0) -> str:
    """What the command prints, run in ``folder``; fails the test at another exit status."""
    words = shlex.split(command)
    assert words[:2] == ["python", "-m"]
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fenced(page: str, language: str) -> str:
    """The first block of that language on the page."""
    text = (ROOT / "docs" / page).read_text() if page != "README.md" else (ROOT / page).read_text()
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("command", sorted({shown.text for shown in SHOWN}))
def test_a_command_that_is_shown_exists_and_takes_its_arguments(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(command, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        "make test-everything",
        "make test-pp WROLD=4",
        "python -m testbed compere A B",
        "python -m testbed run NAME --no-such-option",
        "python -m testbed.measure.no_such_program",
        "pytest no_such_folder",
        "pip install -r requirements-none.txt",
        "testbed-run everything",
    ],
)
def test_a_command_that_does_not_exist_is_found(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Absent):
        check(command, monkeypatch)


def test_commands_are_found_in_blocks_and_in_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Run `make test` or `python -m\ntestbed list`, not `make_fleet`.\n"
        "```shell\n# first\nmake soak   # long\n```\n```text\nmake nothing\n```\n"
    )
    assert [(shown.text, shown.block) for shown in shown_on(page)] == [
        ("make soak", True),
        ("make test", False),
        ("python -m testbed list", False),
    ]


def test_each_command_of_a_shell_block_is_run_or_listed_with_a_reason() -> None:
    run = {canonical(command) for command in (*(command for command, _ in CLI), *ALONE)}
    for command in BLOCKS:
        listed = any(fnmatchcase(command.replace("'", ""), glob) for glob in NOT_RUN)
        assert (command in run) != listed, command
    assert run <= set(BLOCKS)


@pytest.mark.parametrize("glob", NOT_RUN)
def test_each_reason_not_to_run_a_command_is_needed(glob: str) -> None:
    assert any(fnmatchcase(command.replace("'", ""), glob) for command in BLOCKS)


def test_the_commands_of_the_manual_run_in_this_order(tmp_path: Path) -> None:
    for command, status in CLI:
        ran(command, tmp_path, status)
    assert (tmp_path / "OUT.svg").read_text().startswith("<svg")


def test_the_scenario_that_the_manual_shows_ends_as_it_expects(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(fenced("scenarios.md", "json"))
    assert "violation: agreement" in ran("python -m testbed run mine.json", tmp_path)


def test_the_subject_that_the_manual_shows_breaks_its_promise(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(fenced("own_subject.md", "python"))
    command = "python -m testbed run seed-counts --subject mine:make"
    assert "violation: budget" in ran(command, tmp_path, 1)


def test_the_conversation_trace_is_printed(tmp_path: Path) -> None:
    printed = ran("python -m testbed.workloads --requests 300 --seed 0", tmp_path)
    assert len(printed.splitlines()) == 300


def test_the_report_in_the_readme_is_what_a_run_prints(tmp_path: Path) -> None:
    at_hand("sglang==0.5.23")
    ran("python -m testbed run empty-follower-write --subject sglang==0.5.23", tmp_path)
    command = "python -m testbed explain empty-follower-write-sglang==0.5.23-pp2tp2"
    printed = ran(command, tmp_path).splitlines()
    assert [line for line in fenced("README.md", "text").splitlines() if line not in printed] == []


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(
        r"`((?:cases|launchers|reports|testbed|tests)/[\w/.-]+\w)`", page.read_text()
    )
    made = ("reports/out/",)
    absent = [each for each in named if not each.startswith(made) and not (ROOT / each).exists()]
    assert absent == []


def test_the_design_page_shows_the_floors_of_the_layout_in_their_order() -> None:
    rows = re.findall(r"^\| [\w',; -]+ \| (`.*) \|$", (ROOT / "docs/design.md").read_text(), re.M)
    shown = [
        {name.removeprefix("testbed/").removesuffix(".py") for name in re.findall(r"`(.+?)`", row)}
        for row in rows
    ]
    inside = [set(floor) for floor in reversed(FLOORS) if floor != ("__main__",)]
    assert shown == inside


def test_each_page_is_named_on_another() -> None:
    texts = {page: page.read_text() for page in PAGES}
    alone = [
        page.name
        for page in PAGES[1:]
        if not any(page.name in text for other, text in texts.items() if other != page)
    ]
    assert alone == []


def test_shown_says_where_it_is_shown() -> None:
    assert Shown("README.md", "make test", True) in SHOWN
