"""A whole session on disk, in its folder: ``results.json``, ``summary.md``, ``junit.xml`` and the
page ``index.html``; and on GitHub the summary of the job.
"""

from collections.abc import Sequence
from pathlib import Path

from reports.github import append_summary
from reports.junit import JUNIT_FILE, Test, of_row, write_junit
from reports.page import write_page
from reports.results import Row, document, write_json
from reports.table import as_markdown, tally
from testbed.model.errors import BadInput, EnvironmentFault
from testbed.sessions.store import shown

SUMMARY_FILE, RESULTS_FILE = "summary.md", "results.json"


def keep(
    rows: Sequence[Row], world: int, folder: Path, tests: Sequence[Test] | None = None
) -> None:
    """Write all of them, once the terminal has it all. tests: what ``junit.xml`` tells, by default
    the rows. Raises EnvironmentFault if that fails.
    """
    try:
        write_json(document(rows, world, shown(folder)), str(folder / RESULTS_FILE))
        (folder / SUMMARY_FILE).write_text(
            f"{as_markdown(rows)}\n\n{tally(rows)}\n", encoding="utf-8"
        )
        write_junit([of_row(row) for row in rows] if tests is None else tests, folder / JUNIT_FILE)
        append_summary(rows)
        write_page(rows, world, folder)
    except (OSError, BadInput, EnvironmentFault) as error:
        raise EnvironmentFault(f"the summary cannot be kept: {error}") from error
