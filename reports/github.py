"""The summary of a job on GitHub: Markdown appended to the file that ``GITHUB_STEP_SUMMARY`` names.

GitHub loses a step's summary whole if it is over 1 MiB. This one stays under it, with what is in
the file already: first what was not as expected, then as many rows of the table as there is room
for.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from reports.failure import headline, report
from reports.results import Row
from reports.table import as_markdown, tally

VARIABLE = "GITHUB_STEP_SUMMARY"
LIMIT_BYTES = 1024 * 1024

# For the line that says what was left out.
_RESERVE_BYTES = 400


def append_summary(rows: Sequence[Row]) -> None:
    """Append the summary, if the variable is set. Raises OSError."""
    named = os.environ.get(VARIABLE)
    if not named:
        return
    path = Path(named)
    taken = path.stat().st_size if path.exists() else 0
    text = summary(rows, LIMIT_BYTES - 1 - taken)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def summary(rows: Sequence[Row], limit_bytes: int) -> str:
    """The Markdown, no longer than ``limit_bytes``; empty where not even its first line fits."""
    text, room, left_out = "", limit_bytes - _RESERVE_BYTES, 0
    for block in _blocks(rows):
        size = len(block.encode())
        if left_out or size > room:
            left_out += 1
            continue
        text += block
        room -= size
    if not text:
        return ""
    return text + (_left_out(left_out) if left_out else "")


def _left_out(blocks: int) -> str:
    return f"\n{blocks} more parts did not fit; the uploaded report has all of them.\n"


def _blocks(rows: Sequence[Row]) -> Iterator[str]:
    yield f"\n## Testbed\n\n{tally(rows)}\n"
    for row in rows:
        if not row["as_expected"]:
            yield _failure(row)
    lines = as_markdown(rows).split("\n")
    yield "\n" + "\n".join(lines[:3]) + "\n"
    for line in lines[3:]:
        yield f"{line}\n"


def _failure(row: Row) -> str:
    fence = "`" * 4
    return (
        f"\n<details><summary><b>{_html(row['id'])}</b>: {_html(headline(row))}</summary>\n\n"
        f"{fence}\n{report(row).replace(fence, '')}\n{fence}\n\n</details>\n"
    )


def _html(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
