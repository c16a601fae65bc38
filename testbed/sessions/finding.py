"""Recorded runs by what people call them: a folder, a file, a case id, a session."""

import glob
import os
from pathlib import Path

from testbed.model import record
from testbed.model.errors import BadInput, shortened
from testbed.sessions.store import DEFAULT_ROOT, LATEST, file_name, sessions, shown


def find_run(named: str, root: Path = DEFAULT_ROOT) -> Path:
    """A recorded run by its folder, its record file, or its case id in the newest session that has
    it; or the folder of a session that has but one. Raises BadInput if there is none, or several.
    """
    found = find_runs(named, root)
    if len(found) > 1:
        raise BadInput(
            f"{named}: a session of {len(found)} runs, one is wanted here: "
            f"give its folder, such as {found[0]}"
        )
    return found[0]


def find_runs(named: str, root: Path = DEFAULT_ROOT) -> list[Path]:
    """A recorded run, as ``find_run``; a session's folder stands for all its runs. Raises BadInput
    if there is none.
    """
    # Not Path.glob(), not Path.is_file(): they raise for a name too long.
    kept = f"runs/*/{record.RECORD_FILE}"
    inside = [] if "\0" in named else sorted(glob.glob(kept, root_dir=named))
    if inside:
        return [(Path(named) / file).parent for file in inside]
    # Resolved: the next session takes the link away.
    kept_in = [(root / LATEST).resolve(), *reversed(sessions(root))]
    by_id = (session / "runs" / file_name(named) for session in kept_in)
    for path in (Path(named), *by_id):
        if os.path.isfile(path) or os.path.isfile(path / record.RECORD_FILE):
            return [path]
    raise BadInput(
        f"{shortened(named)}: no recorded run "
        f"(give its folder, its {record.RECORD_FILE}, a session's folder, "
        f"or a case id of a session under {root})"
    )


def taken_from(named: str, run: Path, root: Path = DEFAULT_ROOT) -> str:
    """In one line which session a run is of that ``find_runs`` found by its case id; "" where that
    is the latest one.
    """
    session = run.parent.parent
    by_id = run.name == file_name(named) and session.resolve().parent == root.resolve()
    if not by_id or os.path.exists(named) or session.resolve() == (root / LATEST).resolve():
        return ""
    return f"{shortened(named)} is not in the latest session, taken from {shown(session)}"
