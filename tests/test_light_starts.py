"""Commands that run nothing, and reports, start without torch, which takes seconds to import."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from testbed.cli.command import COMMANDS, main
from testbed.model import record
from testbed.sessions import catalog
from tests.fake_fleet import FakeFleet, scenario

ROOT = catalog.BUILTIN.parents[1]

# Like ``python -m testbed``, but the last line says whether torch was imported.
_COMMAND = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules))
from testbed.__main__ import main
sys.exit(main())
"""


def _has_torch(source: str, *arguments: str) -> bool:
    ended = subprocess.run(
        [sys.executable, "-c", source, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    last = ended.stdout.splitlines()[-1]
    assert last in ("True", "False")
    return last == "True"


@pytest.fixture
def run(tmp_path: Path) -> str:
    """The folder of a recorded run."""
    with FakeFleet(4) as fleet:
        record.save(fleet.run(scenario()), tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "list --help",
        "explain --help",
        "recheck --help",
        "list keys",
        "list faults",
        "list oracles",
        "list scenarios",
    ],
)
def test_help_and_lists_import_no_torch(arguments: str) -> None:
    assert not _has_torch(_COMMAND, *arguments.split())


@pytest.mark.parametrize("command", ["explain", "recheck"])
def test_a_command_on_a_recorded_run_imports_no_torch(command: str, run: str) -> None:
    assert not _has_torch(_COMMAND, command, run)


def test_a_command_that_runs_cases_is_seen_to_import_torch() -> None:
    assert _has_torch(_COMMAND, "run", "--help")


def test_no_report_imports_torch() -> None:
    paths = [path.relative_to(ROOT) for path in (ROOT / "reports").rglob("*.py")]
    modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    assert "reports.story" in modules
    assert not _has_torch(f"import sys, {', '.join(modules)}\nprint('torch' in sys.modules)")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(import_module(COMMANDS[name].module).run)
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"], FakeFleet)
    assert f"usage: testbed {name}" in capsys.readouterr().out


def test_no_command_at_all_is_the_help_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], FakeFleet) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: testbed")
    assert all(name in err for name in COMMANDS)
