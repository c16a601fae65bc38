"""The house: rooms lie on floors, and no import runs upwards."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = (
    ("model",),
    ("death", "recorder", "wire"),
    ("analysis", "scripted_events"),
    ("device", "oracles"),
    ("cache",),
    ("protocols",),
    ("subjects",),
    ("workloads",),
    ("faults",),
    ("rank",),
    ("fleet",),
    ("launchers", "programs", "sessions"),
    ("console", "matrix"),
    ("reports",),
    ("bench",),
    ("measure",),
    ("cli", "pytest_plugin"),
    ("__main__",),
)
"""Lowest first. A room knows what lies below it; rooms of one floor do not know each other."""

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Names of the package itself, which every room may have.
_OF_ALL = {"__version__"}


def sources() -> Iterator[Path]:
    for package in ("testbed", "reports", "launchers"):
        yield from sorted((ROOT / package).rglob("*.py"))


def room(module: str) -> str:
    """``testbed.model.scenario`` -> ``model``; ``reports.table`` -> ``reports``."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "testbed" else package


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of everything of ours that the file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        else:
            continue
        for name in named:
            ours = name.partition(".")[0] in ("testbed", "reports", "launchers")
            if ours and room(name) not in _OF_ALL:
                yield node.lineno, room(name)


def upward(path: Path, own: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {own} imports {other}"
        for line, other in imports(path)
        if other != own and FLOOR[other] >= FLOOR[own]
    ]


def test_no_import_runs_upwards_or_to_a_room_of_the_same_floor() -> None:
    found = [
        line
        for path in sources()
        if (own := room(".".join(path.relative_to(ROOT).with_suffix("").parts))) != "__init__"
        for line in upward(path, own)
    ]
    assert found == []


def test_an_import_that_runs_upwards_is_found(tmp_path: Path) -> None:
    path = ROOT / "testbed" / "model" / "errors.py"
    assert upward(path, "model") == []
    assert upward(ROOT / "testbed" / "cli" / "command.py", "model") != []


@pytest.mark.parametrize("package", [each for floor in FLOORS for each in floor])
def test_every_room_is_there(package: str) -> None:
    places = (ROOT / package, ROOT / "testbed" / package, ROOT / "testbed" / f"{package}.py")
    assert any(place.exists() for place in places)


def test_the_model_the_recorder_s_data_and_the_oracles_need_no_torch() -> None:
    for name in ("model", "analysis", "oracles"):
        for path in (ROOT / "testbed" / name).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                named = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
                assert not any(one.partition(".")[0] == "torch" for one in named), path
