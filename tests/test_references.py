"""What a scenario or a planted bug refers to can be looked up by everybody: published numbers."""

import json
import re
from pathlib import Path

import pytest

from testbed.sessions.catalog import builtin_files
from testbed.subjects import bugs

ROOT = Path(__file__).parents[1]
NUMBERS = re.compile(r"([\w.-]+/[\w.-]+)?#\d+(, ([\w.-]+/[\w.-]+)?#\d+)*")
# Ids of lists and pages that are nobody's but their author's.
PRIVATE = re.compile(r"\batlas\b|\bDESIGN\b|\b[A-H]\d{1,2}\b")


@pytest.mark.parametrize("file", builtin_files(), ids=lambda file: file.stem)
def test_a_scenario_refers_to_nothing_that_only_its_author_has(file: Path) -> None:
    written = json.loads(file.read_text())
    expect = written.get("expect", [])
    stated = expect if isinstance(expect, list) else [expect]
    prose = [written.get("comment", ""), *(one.get("why", "") for one in stated)]

    assert NUMBERS.fullmatch(written.get("report", "#0"))
    assert [text for text in prose if PRIVATE.search(text)] == []


@pytest.mark.parametrize("name", bugs.REGISTRY)
def test_a_planted_bug_names_where_it_was_published(name: str) -> None:
    assert NUMBERS.fullmatch(bugs.REGISTRY[name].report)


def test_no_source_refers_to_a_page_that_is_not_here() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for folder in ("testbed", "reports", "launchers", "cases", "docs")
        for kind in ("*.py", "*.md")
        for file in (ROOT / folder).rglob(kind)
        for line in file.read_text().splitlines()
        if re.search(r"\batlas\b|\bDESIGN\b", line)
    ]

    assert found == []
