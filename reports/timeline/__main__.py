"""``python -m reports.timeline RUN OUT.svg``: draw the timeline of a recorded run into a file.

Exit status: 0 drawn, 2 bad input.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from reports.timeline import scene, standalone
from testbed.console import output
from testbed.model import record
from testbed.model.errors import BadInput
from testbed.model.exit_status import AS_EXPECTED
from testbed.sessions.finding import find_run, taken_from
from testbed.sessions.result import judged


def main(argv: Sequence[str]) -> int:
    """Draw it and return the exit status."""
    return output.ended("timeline", lambda: _draw(argv))


def _draw(argv: Sequence[str]) -> int:
    if len(argv) != 2:
        raise BadInput("give a run and the file to draw into: RUN OUT.svg")
    run, out = find_run(argv[0]), Path(argv[1])
    told = taken_from(argv[0], run)
    if told:
        print(f"timeline: {told}", file=sys.stderr)
    result = judged(record.load(run), run)
    try:
        out.write_text(standalone(scene(result), result.scenario.case_id), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{out}: cannot be written ({error.strerror})") from error
    return AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
