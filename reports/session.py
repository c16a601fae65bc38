"""The table of a whole session on disk: ``summary.md`` and ``results.json`` in its folder."""

from collections.abc import Sequence
from pathlib import Path

from reports.results import Row, document, write_json
from reports.table import as_markdown, tally
from testbed.errors import BadInput, EnvironmentFault
from testbed.runs import shown

SUMMARY_FILE, RESULTS_FILE = "summary.md", "results.json"


def keep(rows: Sequence[Row], world: int, folder: Path) -> None:
    """Write both files, once the terminal has it all. Raises EnvironmentFault if that fails."""
    try:
        write_json(document(rows, world, shown(folder)), str(folder / RESULTS_FILE))
        (folder / SUMMARY_FILE).write_text(
            f"{as_markdown(rows)}\n\n{tally(rows)}\n", encoding="utf-8"
        )
    except (OSError, BadInput, EnvironmentFault) as error:
        raise EnvironmentFault(f"the summary cannot be kept: {error}") from error
