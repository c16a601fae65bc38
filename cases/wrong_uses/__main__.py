"""``python -m cases.wrong_uses``: measure every program and write the page."""

import sys
from pathlib import Path

from cases.wrong_uses.correct import CORRECT
from cases.wrong_uses.misuses import WRONG
from cases.wrong_uses.table import measure, page
from testbed.console import output
from testbed.fleet import Fleet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wrong_uses.md"


def main() -> int:
    """Write ``docs/wrong_uses.md`` and say so; returns the exit status."""
    return output.ended("wrong_uses", _write)


def _write() -> int:
    with Fleet(3) as fleet:
        text = page(list(measure(WRONG, fleet)), list(measure(CORRECT, fleet)))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
