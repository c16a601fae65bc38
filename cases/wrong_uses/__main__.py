"""``python -m cases.wrong_uses``: measure every program and write the page."""

from pathlib import Path

from cases.wrong_uses.correct import CORRECT
from cases.wrong_uses.misuses import WRONG
from cases.wrong_uses.table import measure, page
from testbed.world import Fleet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wrong_uses.md"


def main() -> None:
    """Write ``docs/wrong_uses.md`` and say so."""
    with Fleet(3) as fleet:
        text = page(list(measure(WRONG, fleet)), list(measure(CORRECT, fleet)))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)


if __name__ == "__main__":
    main()
