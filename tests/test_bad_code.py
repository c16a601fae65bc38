"""Code of a checkout or of a module of one's own that cannot be loaded is bad input: one line with
the place in it, exit status 2, whichever command meets it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import subjects
from testbed.subjects.bad_code import BadCode
from tests import fake_hiradix

ROOT = Path(__file__).resolve().parents[1]
HIRADIX = "mem_cache/hiradix_cache.py"

# What is put before sound code, what of the message tells it, and the line it is in.
WRONG = {
    "syntax": (b"def broken(:\n", "SyntaxError: ", 1),
    "zero": (b"a = 1\nb = '\x00'\n", "null bytes", 2),
    "encoding": (b"a = 1\nb = '\xff'\n", "", 0),
    "utf-16": ("a = 1\n".encode("utf-16"), "", 0),
    "raises": (b"a = 1\n\nb = 1 / 0\n", "ZeroDivisionError: division by zero", 3),
    "odd": (b"class Odd(BaseException): ...\nraise Odd('x')\n", "Odd: x", 2),
    "leaves": (b"import sys\nsys.exit(0)\n", "it ends the program, by sys.exit(0)", 2),
    "quits": (b"raise SystemExit\n", "it ends the program, by sys.exit(None)", 1),
    "exits": (b"import os\nos._exit(0)\n", "it ends the program, by os._exit(0)", 2),
    "interrupts": (b"raise KeyboardInterrupt\n", "KeyboardInterrupt", 1),
    "mute": (
        b"class Mute(Exception):\n    def __str__(self): raise self\nraise Mute\n",
        "Mute: <exception str() failed>",
        3,
    ),
    "misses": (b"\nimport no_such_module\n", "No module named 'no_such_module'", 2),
    "deep": (b"import json\njson.loads('{')\n", "JSONDecodeError: ", 2),
}
# Of a checkout only definitions are run, so that what merely stands in the file does not matter.
OF_CHECKOUTS = ("syntax", "zero", "encoding", "utf-16")
SOUND = b"def make(*rank):\n    raise NotImplementedError\n"


def own_module(folder: Path, kind: str) -> str:
    (folder / f"wrong_{kind.replace('-', '')}.py").write_bytes(WRONG[kind][0] + SOUND)
    return f"wrong_{kind.replace('-', '')}"


@pytest.mark.parametrize("kind", WRONG)
def test_a_module_that_cannot_be_imported_is_told_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    _, says, line = WRONG[kind]
    monkeypatch.syspath_prepend(str(tmp_path))
    name = own_module(tmp_path, kind)
    with pytest.raises(BadCode) as caught:
        subjects.check(f"{name}:make")
    told = str(caught.value)
    assert f"{tmp_path / name}.py:{line or ''}" in told
    assert says in told
    assert "\n" not in told


def test_the_place_is_where_the_module_went_wrong_not_where_the_library_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wrong_outer.py").write_text("import wrong_inner\n")
    (tmp_path / "wrong_inner.py").write_text("import json\n\njson.loads('{')\n")
    with pytest.raises(BadCode, match=rf"{tmp_path}/wrong_inner\.py:3: JSONDecodeError"):
        subjects.check("wrong_outer:make")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "marked.py").write_bytes(b"\xef\xbb\xbf" + SOUND)
    subjects.check("marked:make")
    subjects.prepare(f"sglang@{checkout(tmp_path, prefix=bytes.fromhex('efbbbf'))}:hiradix")


def checkout(folder: Path, *, prefix: bytes = b"", suffix: bytes = b"") -> Path:
    """A made-up checkout, with bytes before and after the file of its cache class."""
    root = folder / "checkout" / "sglang" / "srt"
    for path, text in fake_hiradix.files().items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        own = path == HIRADIX
        file.write_bytes((prefix if own else b"") + text.encode() + (suffix if own else b""))
    return root.parents[1]


@pytest.mark.parametrize("kind", OF_CHECKOUTS)
def test_a_checkout_that_is_no_python_is_told_with_the_place(tmp_path: Path, kind: str) -> None:
    wrong, says, _ = WRONG[kind]
    folder = checkout(tmp_path, suffix=b"\n" + wrong)
    with pytest.raises((BadCode, ValueError)) as caught:
        subjects.prepare(f"sglang@{folder}:hiradix")
    told = str(caught.value)
    assert f"{folder}/sglang/srt/{HIRADIX}" in told
    assert says in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"1 / 0", "ZeroDivisionError: division by zero"),
        (b"__import__('sys').exit(0)", "it ends the program, by sys.exit(0)"),
        (b"__import__('os')._exit(0)", "it ends the program, by os._exit(0)"),
    ],
)
def test_a_checkout_whose_code_fails_as_it_is_lifted_is_told_with_the_line(
    tmp_path: Path, wrong: bytes, says: str
) -> None:
    folder = checkout(tmp_path)
    file = folder / "sglang" / "srt" / HIRADIX
    text = file.read_bytes()
    head, start, tail = text.partition(b"    def check_hicache_events(self")
    file.write_bytes(head + start + b", _wrong=" + wrong + tail)
    with pytest.raises(BadCode) as caught:
        subjects.prepare(f"sglang@{folder}:hiradix")
    line = head.count(b"\n") + 1
    assert f"{folder}/sglang/srt/{HIRADIX}:{line}: {says}" in str(caught.value)


def test_ctrl_c_while_code_is_loaded_is_the_users_and_what_it_kept_of_os_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "long.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    usual, leave = signal.getsignal(signal.SIGINT), os._exit
    with pytest.raises(KeyboardInterrupt):
        subjects.check("long:make")
    (tmp_path / "keeps.py").write_bytes(b"from os import _exit\n" + SOUND)
    subjects.check("keeps:make")
    assert (signal.getsignal(signal.SIGINT), os._exit) == (usual, leave)
    child = os.fork()
    if child == 0:
        sys.modules["keeps"]._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("kind", ["syntax", "leaves", "raises", "exits"])
@pytest.mark.parametrize(
    "command",
    [
        ["testbed", "run", "skew-followers-slower-1", "--pp=1", "--subject={}"],
        ["testbed", "matrix", "--subjects=batched,{}", "--scenarios=skew-followers-slower-1"],
        ["testbed", "compare", "batched", "{}", "--scenarios=skew-followers-slower-1"],
        ["testbed", "bench", "--quick", "--subjects={}"],
        ["testbed.measure.soak", "--subject={}"],
        ["pytest", "cases/test_skew.py", "--subject={}"],
    ],
    ids=lambda command: command[min(1, len(command) - 2)],
)
def test_every_command_says_it_in_one_line_and_ends_in_2(
    tmp_path: Path, command: list[str], kind: str
) -> None:
    name = own_module(tmp_path, kind)
    words = [word.format(f"{name}:make") for word in command]
    run = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    told = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    assert run.returncode == 2
    assert f"{tmp_path / name}.py:{WRONG[kind][2]}: " in told[-1]
    assert len(told) == 1
