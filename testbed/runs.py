"""One run from scenario to judged result, and where the results are kept.

``execute`` checks a scenario, runs it on a fleet, writes the record to disk, and only then judges
it. A ``RunStore`` is one folder ``<root>/<time>/`` per session (a command, or a whole pytest run):

    <root>/<time>/runs/<case id>[.n]/record.json.gz   what happened
    <root>/<time>/runs/<case id>[.n]/verdict.json     how it was judged then
    <root>/latest                                     symbolic link to the newest session

Only the newest ``KEEP_DEFAULT`` sessions of a root stay, or as many as the environment variable
``TESTBED_KEEP`` says (``all``: every one); one that a process has open is never removed.
"""

import fcntl
import glob
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

from testbed import faults, subjects, workloads
from testbed.device import gpus
from testbed.faults.no_controller import NoController
from testbed.model import record
from testbed.model.errors import BadInput, brief, naming, shortened
from testbed.model.record import RunRecord
from testbed.model.scenario import Expect, Scenario
from testbed.model.topology import MAX_RANKS
from testbed.model.verdict import Verdict
from testbed.oracles import REGISTRY, check_claims, judge

DEFAULT_WORLD = 4
DEFAULT_ROOT = Path("reports/out")
LATEST = "latest"
VERDICT_FILE = "verdict.json"
LOST = "not-kept"

KEEP_VARIABLE = "TESTBED_KEEP"
KEEP_DEFAULT = 20

_NAME_LIMIT = 180
"""Bytes: a file system allows 255, and counts are put behind the name."""
_SESSION = re.compile(r"\d{8}-\d{6}(\.\d+)?")


class RunsCases(Protocol):
    """What ``execute`` needs of a fleet."""

    def run(self, scenario: Scenario) -> RunRecord:
        """Run one case. Raises BadInput or EnvironmentFault."""


class RunStore:
    """The folder of one session. Made on first use, so that a session without runs leaves nothing.

    root: parent of all sessions. name: the session's folder, for a process that joins a session
    which another one named (pytest-xdist workers); by default a new one named after the time.
    """

    def __init__(self, root: Path, name: str = "") -> None:
        self._root = root
        self._folder = root / name if name else None
        self._is_latest = False
        self._lock: int | None = None

    @property
    def folder(self) -> Path:
        """The session's folder, made when first asked for."""
        if self._folder is None:
            self._folder = _new_folder(self._root / time.strftime("%Y%m%d-%H%M%S"))
            self._hold()
        return self._folder

    def close(self) -> None:
        """Let go of the folder: it may be pruned from now on. The process's end does it, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> None:
        if self._lock is None and self._folder is not None:
            self._lock = _locked(self._folder, fcntl.LOCK_SH)

    def claim(self, case_id: str) -> Path:
        """A new folder for one run of that case; later runs of it get ``.2``, ``.3`` and so on.

        The first one makes this session the latest.
        """
        claimed = _new_folder(self.folder / "runs" / file_name(case_id))
        if not self._is_latest:
            self._hold()  # a session that another process named
            self._point_latest()
            prune(self._root, keep_sessions())
        return claimed

    def drop_if_empty(self) -> None:
        """Remove the session's folder if nothing was kept in it."""
        if self._folder is not None and self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _point_latest(self) -> None:
        # Renamed into place: two sessions that start together each leave a whole link.
        link = self._root / f".{LATEST}.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(self.folder.name)
        os.replace(link, self._root / LATEST)
        self._is_latest = True


def keep_sessions() -> int | None:
    """How many sessions stay; None for all. Raises BadInput if the setting is no such number."""
    given = os.environ.get(KEEP_VARIABLE, "").strip()
    if given == "all":
        return None
    if not given:
        return KEEP_DEFAULT
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise BadInput(f"{KEEP_VARIABLE} is {given!r}: give a whole number from 1 on, or all")
    return int(given)


def prune(root: Path, keep: int | None) -> None:
    """Remove all but the newest ``keep`` sessions, except those in use: see ``in_use``.

    What cannot be removed stays; the next session tries again.
    """
    if keep is None:
        return
    for old in _sessions(root)[:-keep]:
        lock = _locked(old, fcntl.LOCK_EX)
        if lock is not None:
            # Renamed first: nobody finds half a session, and of two that prune one gets it.
            doomed = old.with_name(f".{old.name}.pruned")
            try:
                old.rename(doomed)
            except OSError:
                continue
            finally:
                os.close(lock)
            shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def in_use(run: Path) -> Iterator[None]:
    """Keep the session of a recorded run from being pruned meanwhile."""
    session = next(
        (above for above in run.resolve().parents if _SESSION.fullmatch(above.name)), None
    )
    lock = _locked(session, fcntl.LOCK_SH) if session is not None else None
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _sessions(root: Path) -> list[Path]:
    """The folders of all sessions, oldest first."""
    there = root.iterdir() if root.is_dir() else ()
    return sorted(
        (path for path in there if _SESSION.fullmatch(path.name) and path.is_dir()), key=_age
    )


def _age(session: Path) -> tuple[str, int]:
    name, _, number = session.name.partition(".")
    return name, int(number or 1)


def _locked(folder: Path, how: int) -> int | None:
    """A lock on the folder, as a file descriptor that no child inherits; None if others hold it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def file_name(case_id: str) -> str:
    """The case id with whatever does not belong into a file name replaced, cut to a sane length."""
    fit = re.sub(r"[^\w.=@+-]", "_", case_id).encode(errors="replace")[:_NAME_LIMIT]
    return fit.decode(errors="ignore")


def _new_folder(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    candidate, count = path, 1
    while True:
        try:
            candidate.mkdir()
            return candidate
        except FileExistsError:
            count += 1
            candidate = path.with_name(f"{path.name}.{count}")


@dataclass(frozen=True)
class RunResult:
    """One judged run. path: folder of the record. expected: the expectation that applied.
    why_not: what differs from it, in one line; empty where the run was as expected. lost: why the
    record could not be kept (a full disk); the verdict was then reached from memory."""

    scenario: Scenario
    record: RunRecord
    verdict: Verdict
    path: Path
    expected: Expect
    why_not: str
    lost: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether the run ended as its scenario says."""
        return not self.why_not


def check_world(world: int, option: str) -> None:
    """Raise BadInput for a number of hosts that no fleet has; ``option`` is where it was given."""
    if not 1 <= world <= MAX_RANKS:
        raise BadInput(f"{option} is {brief(world)}: give a whole number from 1 to {MAX_RANKS}")


def check_backend(backend: str | None, device: str | None) -> None:
    """Raise EnvironmentFault if a GPU is asked for and there is none; None stands for what a
    scenario says.
    """
    if backend == "nccl" or device == "cuda":
        gpus.check_usable()


def _check_hardware(scenario: Scenario) -> None:
    """Raise BadInput or EnvironmentFault if the scenario asks for more than this machine has."""
    check_backend(scenario.backend, scenario.device)
    if scenario.backend == "nccl":
        gpus.check_one_each(scenario.topology)
    if scenario.agree_on == "nccl":
        subjects.check_places_tensors(scenario.subject)


def prepare(scenario: Scenario, where: str = "") -> None:
    """Check all that can be checked before a rank is forked, and fetch the subject's sources.

    where: the file it was read from, for what is told; without one its name is.

    Raises BadInput for an unknown subject, release, fault, workload, selector or claim, for a
    broken trace file, for a fault that can never take effect and for more ranks than NCCL has GPUs;
    EnvironmentFault for a release that cannot be fetched, and where a GPU is wanted and there is
    none.
    """
    with naming(where or f"scenario {shortened(scenario.name)}"):
        _check_hardware(scenario)
        _check_sidecars(scenario)
        plan = workloads.parse(scenario)
        faults.check(scenario, plan)
        check_claims(scenario.claims)
        _check_expectations(scenario)
        subjects.prepare(scenario.subject)
        subjects.check_calls(scenario.subject, (spec.call for spec in scenario.calls))
        subjects.check_needs(scenario.subject, _needs(scenario))


def _needs(scenario: Scenario) -> Iterator[subjects.Need]:
    """What its subject must have for the run to say anything of it."""
    listed = faults.parse(scenario.faults)
    if scenario.storage:
        yield "storage"
    if faults.adapted(listed, scenario).sidecars:
        yield "sidecars"
    if any(isinstance(fault, NoController) for fault in listed):
        yield "no-controller"


def _check_sidecars(scenario: Scenario) -> None:
    if scenario.sidecars and not scenario.storage:
        raise BadInput('sidecars are listed but storage is off: set "storage": true')


def _check_expectations(scenario: Scenario) -> None:
    stated = scenario.expect if isinstance(scenario.expect, list) else [scenario.expect]
    for oracle in (expect.oracle for expect in stated if expect.oracle is not None):
        if oracle not in REGISTRY:
            raise BadInput(f"expect.oracle is {brief(oracle)}: give one of {', '.join(REGISTRY)}")


def execute(fleet: RunsCases, scenario: Scenario, store: RunStore) -> RunResult:
    """Run one scenario; the record is on disk before anything judges it, unless the disk is full.

    Raises BadInput if the scenario cannot be run, EnvironmentFault if the fleet failed.
    """
    prepare(scenario)
    return execute_as_it_is(fleet, scenario, store)


def execute_as_it_is(fleet: RunsCases, scenario: Scenario, store: RunStore) -> RunResult:
    """The same for a fleet whose ranks take other scenarios than ``prepare`` knows."""
    keep_sessions()  # refused before anything has run
    run_record = fleet.run(scenario)
    try:
        path = store.claim(scenario.case_id)
        record.save(run_record, path)
        result = judged(run_record, path)
        verdict_json = msgspec.json.encode(result.verdict.to_json())
        (path / VERDICT_FILE).write_bytes(msgspec.json.format(verdict_json, indent=1) + b"\n")
    except OSError as error:
        lost = f"{scenario.case_id} cannot be kept: {error.strerror}"
        return replace(judged(run_record, Path(LOST)), lost=lost)
    return result


def judged(run_record: RunRecord, path: Path) -> RunResult:
    """Judge a record that lies in ``path`` against what its scenario expects. Writes nothing."""
    verdict = judge(run_record)
    expected = run_record.scenario.expected
    return RunResult(
        scenario=run_record.scenario,
        record=run_record,
        verdict=verdict,
        path=path,
        expected=expected,
        why_not=difference(expected, verdict),
    )


def difference(expected: Expect, verdict: Verdict) -> str:
    """In one line how a verdict differs from the expectation; empty where it does not.

    Oracle, step and ranks count only where the expectation names them; ranks in any order.
    """
    wrong = [
        f"{what} {'none' if got is None else got}"
        for what, wanted, got in (
            ("verdict", expected.verdict, verdict.outcome),
            ("oracle", expected.oracle, verdict.oracle),
            ("step", expected.step, verdict.step),
            ("ranks", _ranks(expected.ranks), _ranks(verdict.ranks)),
        )
        if wanted is not None and wanted != got
    ]
    return f"expected {told(expected)}, got {', '.join(wrong)}" if wrong else ""


def told(expected: Expect) -> str:
    """``violation by agreement at step 1 on ranks 2,3``."""
    words = [str(expected.verdict)]
    if expected.oracle is not None:
        words.append(f"by {expected.oracle}")
    if expected.step is not None:
        words.append(f"at step {expected.step}")
    if expected.ranks is not None:
        words.append(f"on ranks {_ranks(expected.ranks)}")
    return " ".join(words)


def _ranks(ranks: list[int] | tuple[int, ...] | None) -> str | None:
    return None if ranks is None else ",".join(map(str, sorted(ranks))) or "none"


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
    sessions = [(root / LATEST).resolve(), *reversed(_sessions(root))]
    by_id = (session / "runs" / file_name(named) for session in sessions)
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


def shown(path: Path) -> str:
    """The path as people type it: relative where it lies below the working folder."""
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
