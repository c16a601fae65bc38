"""The testbed in pytest: a fleet per worker, a fixture that runs and checks a case, one table.

A ``conftest.py`` with ``pytest_plugins = ["testbed.pytest_plugin"]`` loads it. No entry point does:
it imports torch, which unrelated pytest runs should not pay for::

    @pytest.mark.scenarios("skew-*", topologies="pp2tp1 pp2tp2", subjects="batched fused")
    def test_skew_is_only_a_stall(scenario, check):
        check(scenario)

``check`` fails the test with a report between twice the command that replays the case. ``run_case``
only runs and judges. Both put the run into the table at the end, also from pytest-xdist workers,
each of which has a fleet of its own.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reports import outputs
from reports.failure import headline
from reports.failure import report as failure_report
from reports.junit import Test
from reports.results import Row, row
from reports.session import keep
from reports.table import for_terminal, tally
from testbed import subjects
from testbed.device import gpus
from testbed.fleet import Fleet, LastingFleet
from testbed.model.errors import BadInput, EnvironmentFault, Terminated, terminable
from testbed.model.exit_status import BAD_INPUT, ENVIRONMENT, INTERRUPTED, TERMINATED
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology
from testbed.sessions import catalog, nodes
from testbed.sessions.catalog import Axes
from testbed.sessions.execute import check_backend, execute
from testbed.sessions.result import RunResult
from testbed.sessions.store import DEFAULT_ROOT, RunStore, keep_sessions, shown
from testbed.sessions.world import DEFAULT_WORLD, RunsCases, check_world
from testbed.subjects.bad_code import BadCode

RunCase = Callable[[Scenario], RunResult]

_ROWS_ATTRIBUTE = "testbed_rows"
_FAILURE_ATTRIBUTE = "testbed_failure"
_NO_FLEET_ATTRIBUTE = "testbed_no_fleet"
_FROM_CONTROLLER = "testbed_session"
_RUNS_SECTION = "testbed runs of this test"
_RUNS_SHOWN = 3
_MARKER = (
    "scenarios(*names_or_scenarios, topologies=None, subjects=None): run the test once per"
    " scenario, topology and subject, each time as its argument 'scenario'"
)


class CaseFailed(AssertionError):
    """A case was not as expected. line: all of it in one line. verdict: the run's, empty where it
    could not be run at all. told: the report.
    """

    def __init__(self, told: str, line: str, verdict: str) -> None:
        super().__init__(told)
        self.told, self.line, self.verdict = told, line, verdict


class _Shown:
    """What pytest shows of a failed case: the report, and in its one-line summary (and in the
    message of its JUnit file) the line that says most.
    """

    class _Crash(NamedTuple):
        message: str

        def __str__(self) -> str:
            return self.message

    def __init__(self, told: str, line: str) -> None:
        self._told = told
        self.reprcrash = self._Crash(line)

    def __str__(self) -> str:
        return self._told

    def toterminal(self, writer: Any) -> None:
        """Every line as it is, to pytest's terminal writer."""
        for line in self._told.splitlines():
            writer.line(line)


class _Session:
    """What one pytest process gathers, as a plugin: rows by test, and the order of the tests.

    no_fleet: why a pytest-xdist worker has none. interrupted: the exit status, where Ctrl-C or
    SIGTERM ended the session. running: the test that is running, ran: the rows it has so far.
    """

    def __init__(self, store: RunStore, world: int, *, is_worker: bool) -> None:
        self.store = store
        self.world = world
        self.is_worker = is_worker
        self.trouble = ""
        self.no_fleet = ""
        self.interrupted = 0
        self.running = ""
        self.ran: list[Row] = []
        self._rows: list[tuple[str, Row]] = []
        self._tests: dict[str, Test] = {}
        self._order: dict[str, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the rows of a report, wherever its test ran. A worker's word that it has no fleet
        ends the session: its other tests have none either.
        """
        no_fleet = report.__dict__.get(_NO_FLEET_ATTRIBUTE, "")
        if no_fleet and not self.is_worker:
            pytest.exit(f"testbed: {no_fleet}", returncode=ENVIRONMENT)
        line, _ = report.__dict__.get(_FAILURE_ATTRIBUTE, ("", ""))
        if line and isinstance(report.longrepr, str):  # it came from a worker of pytest-xdist
            _show(report, report.longrepr, line)
        rows = report.__dict__.get(_ROWS_ATTRIBUTE, [])
        self._rows += [(report.nodeid, each) for each in rows]
        if report.when == "teardown":
            self.ran = []
        before = self._tests.get(report.nodeid)
        self._tests[report.nodeid] = _tested(report, before)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C, SIGTERM, or ``pytest.exit``, which has a status of its own. Of the test that was
        cut short no report comes any more.
        """
        if isinstance(excinfo.value, KeyboardInterrupt):
            terminated = isinstance(excinfo.value, Terminated)
            self.interrupted = TERMINATED if terminated else INTERRUPTED
        self._rows += [(self.running, each) for each in self.ran]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be collected is an error, too."""
        if report.failed:
            text = str(report.longrepr)
            message = text.strip().rsplit("\n", 1)[-1]
            made = Test(report.nodeid, report.nodeid, 0, "error", "collection", message, text)
            self._tests[report.nodeid] = made

    def put_in_order(self, nodeids: Sequence[str]) -> None:
        """Tell in which order the tests were collected."""
        self._order = {nodeid: place for place, nodeid in enumerate(nodeids)}

    @property
    def rows(self) -> list[Row]:
        """In the order of collection, however many workers ran them."""
        last = len(self._order)
        return [each for _, each in sorted(self._rows, key=lambda r: self._order.get(r[0], last))]

    @property
    def tests(self) -> list[Test]:
        """All tests as entries of ``junit.xml``, in the same order."""
        last = len(self._order)
        order = sorted(self._tests, key=lambda nodeid: self._order.get(nodeid, last))
        return [self._tests[nodeid] for nodeid in order]


def _show(report: pytest.TestReport, told: str, line: str) -> None:
    # pytest takes anything that can show itself on a terminal; its type hint names its own classes.
    report.longrepr = _Shown(told, line)  # type: ignore[assignment]


def _tested(report: pytest.TestReport, before: Test | None) -> Test:
    """What one more report of a test (its setup, its call, its teardown) makes of its entry."""
    suite, _, name = report.nodeid.partition("::")
    test = before or Test(suite, name, 0.0)
    test = test._replace(seconds=test.seconds + report.duration)
    if report.skipped:
        text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        return test._replace(outcome="skipped", message=text.removeprefix("Skipped: "))
    if not report.failed:
        return test
    text = str(report.longrepr)
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else text.strip().rsplit("\n", 1)[-1]
    for title, told in report.sections:
        if title == _RUNS_SECTION:
            text += f"\n\n{title}:\n{told}"
    line, verdict = report.__dict__.get(_FAILURE_ATTRIBUTE, ("", ""))
    ours = report.when != "call" or (bool(line) and verdict in ("", "error"))
    kind = verdict or (report.when if ours and report.when != "call" else "")
    return test._replace(
        outcome="error" if ours else "failure",
        kind=kind or "",
        message=message,
        text=text,
    )


_SESSION = pytest.StashKey[_Session]()
_ROWS = pytest.StashKey[list[Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the testbed."""
    group = parser.getgroup("testbed", "multi-rank testbed")
    group.addoption("--world", type=int, default=DEFAULT_WORLD, metavar="N", help="hosts per fleet")
    group.addoption(
        "--oversubscribe", action="store_true", help="let a host run several ranks of one case"
    )
    group.addoption(
        "--port", type=int, default=0, metavar="P", help="where the hosts call (default: any free)"
    )
    nodes.add_options(group.addoption)
    group.addoption("--subject", metavar="S[,S]", help="run every scenario with these subjects")
    for axis in ("pp", "tp", "cp"):
        group.addoption(
            f"--{axis}",
            type=int,
            metavar="N",
            help=f"only topologies with {axis} = N; exactly that one where a case lists none",
        )
    group.addoption("--backend", choices=("gloo", "nccl"), help="instead of what scenarios say")
    group.addoption("--device", choices=("cpu", "cuda"), help="instead of what scenarios say")
    group.addoption("--agree-on", choices=("gloo", "nccl"), help="instead of what scenarios say")
    group.addoption(
        "--ranks", choices=outputs.CHOICES, default="first", help=f"{outputs.HELP} (default: first)"
    )
    group.addoption(
        "--runs-out", metavar="DIR", help=f"folder of the kept runs (default: {DEFAULT_ROOT})"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options that name something, and open the session."""
    config.addinivalue_line("markers", _MARKER)
    world = config.getoption("--world")
    try:
        keep_sessions()
        check_world(world, _world_option())
        check_backend(config.getoption("--backend"), config.getoption("--device"))
        nodes.check(_node_options(config))
        if config.getoption("--listen") and getattr(config.option, "numprocesses", None):
            raise BadInput("--listen: one controller meets the hosts, leave -n (JOBS) out")
        for name in _subjects(config):
            subjects.prepare(name)
        asked_for = Topology(**_axes(config).given)
        asked_for.check_fits(world, config.getoption("--oversubscribe"), _remedy())
    except BadCode as error:  # the option is right, what it names is wrong
        pytest.exit(f"testbed: {error}", returncode=BAD_INPUT)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None
    except EnvironmentFault as error:
        pytest.exit(f"testbed: {error}", returncode=ENVIRONMENT)
    out = config.getoption("--runs-out")
    root = Path(out) if out else config.rootpath / DEFAULT_ROOT
    from_controller = getattr(config, "workerinput", {}).get(_FROM_CONTROLLER, "")
    is_worker = hasattr(config, "workerinput")
    session = _Session(RunStore(root, from_controller), world, is_worker=is_worker)
    config.stash[_SESSION] = session
    config.pluginmanager.register(session, "testbed-session")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """SIGTERM ends a session as Ctrl-C does: with the table of what has run, and its files."""
    with terminable():
        return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A session without runs leaves nothing behind."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.store.close()
        session.store.drop_if_empty()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist: its workers keep their runs in the controller's session."""
    store = node.config.stash[_SESSION].store
    node.workerinput[_FROM_CONTROLLER] = store.folder.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """pytest-xdist: reports come in any order; the table keeps the order of collection."""
    node.config.stash[_SESSION].put_in_order(ids)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread the scenarios of the marker over topologies and subjects, as the options say."""
    markers = list(metafunc.definition.iter_markers("scenarios"))
    if not markers or "scenario" not in metafunc.fixturenames:
        return
    base = metafunc.definition.path.parent
    cases: list[Scenario] = []
    try:
        for marker in markers:
            cases += [case for case in _cases(marker, base, metafunc.config) if case not in cases]
    except BadInput as error:
        raise pytest.Collector.CollectError(f"bad input: {error}") from None
    parameters = [
        pytest.param(case, id=case.case_id, marks=_marks(case, metafunc.config)) for case in cases
    ]
    metafunc.parametrize("scenario", parameters)


def _cases(marker: pytest.Mark, base: Path, config: pytest.Config) -> Iterator[Scenario]:
    topologies = [Topology.parse(text) for text in _words(marker.kwargs.get("topologies"))]
    names = _subjects(config) or _words(marker.kwargs.get("subjects"))
    unknown = set(marker.kwargs) - {"topologies", "subjects"}
    if unknown:
        raise BadInput(
            f"@pytest.mark.scenarios has no {sorted(unknown)[0]!r}: give topologies, subjects"
        )
    for given in marker.args:
        scenarios = [given] if isinstance(given, Scenario) else catalog.load([given], base)
        for scenario in scenarios:
            try:
                yield from catalog.spread(scenario, topologies, names, _axes(config))
            except catalog.NamesNobody:
                if not _axes(config).given:  # else: nobody there at the sizes asked for, left out
                    raise


def _marks(scenario: Scenario, config: pytest.Config) -> list[pytest.MarkDecorator]:
    world, oversubscribe = config.getoption("--world"), config.getoption("--oversubscribe")
    try:
        scenario.topology.check_fits(world, oversubscribe, _remedy())
        if (_changes(config).get("backend") or scenario.backend) == "nccl":
            gpus.check_one_each(scenario.topology)
    except (BadInput, EnvironmentFault) as error:
        return [pytest.mark.skip(reason=str(error))]
    return []


def _world_option() -> str:
    """What the user gives the world with: ``make`` has a variable for it."""
    return "WORLD" if "MAKELEVEL" in os.environ else "--world"


def _remedy() -> str:
    if "MAKELEVEL" in os.environ:
        return "raise WORLD="
    return "raise --world or pass --oversubscribe"


def _words(given: str | Sequence[str] | None) -> list[str]:
    return given.split() if isinstance(given, str) else [str(each) for each in given or ()]


def _axes(config: pytest.Config) -> Axes:
    return Axes(*(config.getoption(f"--{axis}") for axis in ("pp", "tp", "cp")))


def _node_options(config: pytest.Config) -> dict[str, Any]:
    return {name: config.getoption(name) for name in ("listen", "nodes", "fleet_file")}


def _changes(config: pytest.Config) -> dict[str, str]:
    """What the options have otherwise than the scenarios."""
    keys = ("backend", "device", "agree_on")
    given = {key: config.getoption(f"--{key.replace('_', '-')}") for key in keys}
    return {key: value for key, value in given.items() if value is not None}


def _subjects(config: pytest.Config) -> list[str]:
    given: str | None = config.getoption("--subject")
    return [name for name in (given or "").split(",") if name]


@pytest.fixture(scope="session")
def fleet(pytestconfig: pytest.Config) -> Iterator[RunsCases]:
    """A running fleet of ``--world`` hosts, one per pytest process, started when first used."""
    options = pytestconfig.getoption

    def start() -> Fleet:
        return Fleet(
            options("--world"), oversubscribe=options("--oversubscribe"), port=options("--port")
        )

    with contextlib.ExitStack() as closing:
        try:
            running = closing.enter_context(
                nodes.awaited_fleet(
                    options("--world"),
                    _node_options(pytestconfig),
                    oversubscribe=options("--oversubscribe"),
                )
                if options("--listen")
                else LastingFleet(start)
            )
        except BadInput as error:
            pytest.exit(f"testbed: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        except EnvironmentFault as error:
            session = pytestconfig.stash[_SESSION]
            if not session.is_worker:
                pytest.exit(f"testbed: {error}", returncode=ENVIRONMENT)
            # A worker that left would be taken for one that crashed: it has the controller leave.
            session.no_fleet = str(error)
            running = None
        if running is None:  # outside of the handler: one line is all there is to say
            pytest.fail(f"testbed: {session.no_fleet}", pytrace=False)
        yield running


@pytest.fixture
def run_case(request: pytest.FixtureRequest, fleet: RunsCases) -> RunCase:
    """Run and judge one scenario: ``run_case(scenario) -> RunResult``. Asserts nothing about it.

    Fails the test if the scenario cannot be run or the fleet failed.
    """
    changes = _changes(request.config)
    session = request.config.stash[_SESSION]
    store = session.store
    session.running, session.ran = request.node.nodeid, []
    request.node.stash[_ROWS] = session.ran

    def run(scenario: Scenario) -> RunResult:
        __tracebackhide__ = True
        result, wrong = None, ""
        try:
            result = execute(fleet, scenario.but(**changes), store)
        except BadInput as error:
            wrong = f"bad input: {error}"
        except EnvironmentFault as error:
            wrong = f"error of the environment: {error}"
        if result is None:  # outside of the handlers: one line is all there is to say
            raise CaseFailed(wrong, wrong, "")
        session.trouble = session.trouble or result.lost
        session.ran.append(row(result))
        return result

    return run


@pytest.fixture
def check(request: pytest.FixtureRequest, run_case: RunCase) -> RunCase:
    """As ``run_case``; fails the test, with the report, if the run was not as expected."""
    ranks = request.config.getoption("--ranks")

    def run(scenario: Scenario) -> RunResult:
        __tracebackhide__ = True
        result = run_case(scenario)
        if not result.as_expected:
            made = row(result)
            told = failure_report(made, outputs.outputs(result, ranks))
            raise CaseFailed(told, headline(made), made["verdict"])
        return result

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test's rows travel with its last report, also from a pytest-xdist worker.

    As an attribute, not as user properties: those would fill JUnit files with them.
    """
    report = yield
    failed = call.excinfo.value if call.excinfo is not None else None
    rows = item.stash.get(_ROWS, [])
    if isinstance(failed, CaseFailed):
        report.__dict__[_FAILURE_ATTRIBUTE] = [failed.line, failed.verdict]
        _show(report, failed.told, failed.line)
    elif report.failed and rows:
        report.sections.append((_RUNS_SECTION, _told_runs(rows)))
    report.__dict__[_NO_FLEET_ATTRIBUTE] = item.config.stash[_SESSION].no_fleet
    if report.when == "teardown":
        report.__dict__[_ROWS_ATTRIBUTE] = rows
    return report


def _told_runs(rows: Sequence[Row]) -> str:
    """Of a test that failed by an assertion of its own: what it ran last, and how to run that
    again.
    """
    earlier = len(rows) - _RUNS_SHOWN
    lines = [f"{earlier} earlier runs, then:"] if earlier > 0 else []
    for each in rows[-_RUNS_SHOWN:]:
        lines += [f"{each['id']}: {each['verdict']}, kept in {each['path']}", each["replay"]]
    return "\n".join(lines)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The one table of all runs, and the same as Markdown and JSON in the session's folder."""
    session = config.stash[_SESSION]
    rows = session.rows
    if not rows:
        return
    folder = session.store.folder
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else 160
    terminalreporter.section("testbed", sep="=")
    # pytest has decided on colour already: terminal, NO_COLOR and its own --color.
    table = for_terminal(rows, width, colour=terminalreporter.hasmarkup)
    terminalreporter.write_line(table)
    terminalreporter.write_line("")
    terminalreporter.write_line(f"{tally(rows)}; kept in {shown(folder)}")
    if session.trouble:
        terminalreporter.write_line(f"testbed: {session.trouble}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the table beside the runs. Where that fails the terminal still has it, and the exit
    status says so.
    """
    ours = session.config.stash[_SESSION]
    if ours.interrupted:
        session.exitstatus = ours.interrupted
    if ours.is_worker or not ours.rows:
        return
    if not ours.trouble:
        try:
            keep(ours.rows, ours.world, ours.store.folder, ours.tests)
        except EnvironmentFault as error:
            ours.trouble = str(error)
    if ours.trouble:
        session.exitstatus = ENVIRONMENT
