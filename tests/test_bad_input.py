"""What people give that cannot be run: refused before anything runs, in one line, with its file."""

import gzip
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import __main__ as command_line
from testbed.cli.command import main
from testbed.model import record
from testbed.model.errors import BadInput, brief, naming, one_line
from testbed.sessions import catalog
from testbed.sessions.finding import find_runs
from testbed.sessions.store import file_name
from testbed.workloads.requests import MAX_BLOCKS
from tests.fake_fleet import FakeFleet, clean, scenario

Capture = pytest.CaptureFixture[str]
SCRIPT = {"kind": "scripted", "writes": [{"at": 0}]}
PLAIN: dict[str, Any] = {"name": "plain", "topology": {"pp": 2, "tp": 2}, "workload": SCRIPT}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: Capture, *arguments: str, status: int = 2) -> str:
    """The one line that is told; nothing has run."""
    assert main(arguments, FakeFleet) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert not Path("reports").exists()
    return err.removeprefix("testbed: ").rstrip("\n")


def refused_file(capsys: Capture, content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    Path("bad.json").write_text(text)
    told = refused(capsys, "run", "bad.json")
    assert told.startswith("bad.json: ")
    return told.removeprefix("bad.json: ")


# Numbers and shapes

FAR = 1 << 64


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"workload": {"kind": "scripted", "writes": [{"at": FAR}]}}, "workload.writes[0].at"),
        ({"workload": {**SCRIPT, "loads": [{"on": {"rank": FAR}}]}}, "workload.loads[0].on.rank"),
        ({"workload": {**SCRIPT, "loads": [{"ready_after": FAR}]}}, "loads[0].ready_after"),
        ({"workload": {**SCRIPT, "backup_after": -FAR}}, "workload.backup_after"),
        ({"workload": {"kind": "trace", "path": "x", "requests": 10**30}}, "workload.requests"),
        ({"faults": [{"kind": "slow-events", "steps": FAR}]}, "faults[0].steps"),
        ({"faults": [{"kind": "slow-events", "ms": 1e300}]}, "faults[0].ms"),
        ({"faults": [{"kind": "clock-step", "seconds": -1e300}]}, "faults[0].seconds"),
        ({"expect": {"verdict": "hang", "step": FAR}}, "step"),
        ({"storage": True, "sidecars": [{"name": "a", "on": {"pp": FAR}}]}, "on.pp"),
    ],
)
def test_a_number_that_no_run_can_have_is_refused_by_key(
    changes: dict[str, Any], key: str, capsys: Capture
) -> None:
    told = refused_file(capsys, PLAIN | changes)
    assert f"{key} is " in told
    assert "give a number from -2147483647 to 2147483647" in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"steps": 0}, "steps is 0: give a whole number from 1 to 100000"),
        ({"topology": {"pp": 10**4000}}, "has too many ranks: at most 256 are run"),
        ({"sizes": {"layers": 1 << 20, "heads": 1 << 20}}, "values a pool: at most 268435456"),
        ({"expect": {"verdict": "hang", "deadline_ms": 0}}, "deadline_ms is 0: give a whole"),
        ({"name": "\x1b[31mred"}, "name is '\\x1b[31mred': give a word"),
        ({"sidecars": [{"name": "a"}]}, 'storage is off: set "storage": true'),
        ({"claims": ["cheap"]}, "claim 'cheap' is unknown: give any of stage-local"),
        ({"workload": {"kind": ["scripted"]}}, "workload.kind is ['scripted']: give one of"),
        ({"workload": {"kind": "trace", "path": "a\0b"}}, "trace a\\x00b: cannot be read"),
        ({"workload": {"kind": "trace", "path": "a" * 5000}}, "cannot be read (no such file)"),
        ({"workload": {"kind": "trace", "path": "/dev/zero"}}, "cannot be read (no such file)"),
        ({"faults": [{"kind": ["kill"]}]}, "faults[0].kind is ['kill']: give one of"),
        ({"faults": [{"kind": {"a": 1}}]}, "faults[0].kind is {'a': 1}: give one of"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_file_and_key(
    changes: dict[str, Any], told: str, capsys: Capture
) -> None:
    assert told in refused_file(capsys, PLAIN | changes)


@pytest.mark.parametrize("depth", [14, 500, 100_000])
def test_what_is_nested_too_deep_is_refused(depth: int, capsys: Capture) -> None:
    text = json.dumps(PLAIN | {"workload": {"kind": "scripted", "writes": 0}})
    told = refused_file(capsys, text.replace(": 0}", f": {'[' * depth}{']' * depth}}}"))
    assert "nested" in told
    assert told.endswith("unfold it")


# Requests

PREFILL = {"kind": "prefill", "lengths": [64], "requests": 3}


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({"requests": 10**9}, f"of 4000000000 pages in all: at most {MAX_BLOCKS} are made"),
        ({"requests": MAX_BLOCKS // 4 + 1}, f"at most {MAX_BLOCKS} are made"),
        ({"lengths": [64, 2**31 - 1]}, "r1 has 134217728 pages, sizes.device_pages is 64"),
        ({"lengths": [10**15]}, "workload.lengths[0] is 1000000000000000: give a number"),
        ({"requests": -1}, "workload.requests is -1: give a number from 1 on"),
    ],
)
def test_requests_past_all_bounds_are_refused_before_one_is_made(
    workload: dict[str, Any], told: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("a request was made")

    monkeypatch.setattr("testbed.workloads.prefill._request", made)
    assert told in refused_file(capsys, PLAIN | {"workload": PREFILL | workload})


def test_a_trace_past_all_bounds_is_read_no_further(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
    Path("long.jsonl").write_text(f"{json.dumps(line)}\n" * 3 + "broken")
    monkeypatch.setattr("testbed.workloads.requests.MAX_BLOCKS", 4)
    told = refused_file(capsys, PLAIN | {"workload": {"kind": "trace", "path": "long.jsonl"}})
    assert told.startswith("trace long.jsonl, line 3: more than 4 blocks")


# Faults that can never take effect

TWO_WRITES = {"kind": "scripted", "writes": [{"at": 0}, {"at": 2, "on": {"pp": 0}}]}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "kill", "from_step": 8}, "from_step is 8: the run has steps 0 to 7"),
        ({"kind": "capacity", "host_pages": 1, "from_step": 8}, "the run has steps 0 to 7"),
        ({"kind": "kill", "until_step": 0}, "holds in no step"),
        ({"kind": "kill", "when": "exit", "until_step": 7}, "the exit comes in the last step, 7"),
        ({"kind": "late", "steps": 1, "from_step": 7}, "no step is left after the last, 7"),
        ({"kind": "microbatch-lag", "on": "leader"}, "on the first stage only"),
        ({"kind": "slow-events", "steps": 0}, "shifts nothing"),
        ({"kind": "never-ready", "nth": -1}, "nth is -1: give a number from 0 on"),
        ({"kind": "alloc-failure", "nth": -1}, "nth is -1: give a number from 0 on"),
        ({"kind": "out-of-order", "nth": -1}, "nth is -1: give a number from 0 on"),
        ({"kind": "never-ready", "nth": 2}, "never-ready can never take effect"),
        ({"kind": "query-error", "nth": 1, "on": {"pp": 1}}, "query-error can never take effect"),
        ({"kind": "slow-events", "steps": 1, "queue": "load"}, "can never take effect"),
        ({"kind": "empty-queue", "from_step": 3}, "empty-queue can never take effect"),
        ({"kind": "out-of-order", "nth": 1}, "out-of-order can never take effect"),
        ({"kind": "out-of-order", "on": "followers"}, "out-of-order can never take effect"),
        ({"kind": "extra-pool", "name": "a b"}, "name is 'a b': give a word"),
    ],
)
def test_a_fault_that_is_sure_never_to_take_effect_is_refused(
    fault: dict[str, Any], told: str, capsys: Capture
) -> None:
    case = PLAIN | {"workload": TWO_WRITES, "traffic": True, "storage": True, "faults": [fault]}
    assert refused_file(capsys, case).startswith("faults[0]")
    assert told in refused_file(capsys, case)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "kill", "from_step": 7, "when": "exit"},
        {"kind": "never-ready", "nth": 1},
        {"kind": "query-error", "nth": 0, "on": {"pp": 1}},
        {"kind": "empty-queue", "from_step": 2},
        {"kind": "out-of-order"},
        {"kind": "late", "steps": 1, "from_step": 6},
        {"kind": "slow-events", "steps": 1, "queue": "backup"},
    ],
)
def test_a_fault_that_can_take_effect_is_run(fault: dict[str, Any]) -> None:
    case = PLAIN | {"workload": TWO_WRITES, "storage": True, "faults": [fault]}
    Path("good.json").write_text(json.dumps(case))
    main(["run", "good.json"], FakeFleet)
    # The made-up fleet injects nothing, which its record is told for: it did run.
    assert len(find_runs("plain-batched-pp2tp2")) == 1


# Names

NAMES = ["/*.zip", "/no/such/*", "a**b", "x" * 5000, "y" * 5000 + "*", "", "nul\0", "*\0", "["]


@pytest.mark.parametrize("named", NAMES)
@pytest.mark.parametrize("command", ["run", "replay", "recheck", "explain"])
def test_a_name_that_stands_for_nothing_is_one_line(
    command: str, named: str, capsys: Capture
) -> None:
    assert ": no " in refused(capsys, command, named)


def test_an_absolute_glob_finds_what_a_relative_one_finds(folder: Path) -> None:
    for name in ("b", "a"):
        (folder / f"{name}.json").write_text("{}")
    assert catalog.find(f"{folder}/*.json") == [folder / "a.json", folder / "b.json"]
    assert catalog.find("*.json") == catalog.find(f"{folder}/*.json")


def test_a_file_name_is_cut_in_bytes_and_between_characters() -> None:
    assert file_name("漢" * 150) == "漢" * 60  # of three bytes each, 180 at most
    assert file_name("a" + "漢" * 150) == "a" + "漢" * 59


def test_a_case_with_a_long_name_in_any_script_is_kept(capsys: Capture) -> None:
    Path("long.json").write_text(json.dumps(PLAIN | {"name": "漢" * 150}))
    assert main(["run", "long.json"], FakeFleet) == 0
    assert main(["recheck", "漢" * 150 + "-batched-pp2tp2"], FakeFleet) == 0


def test_replay_and_recheck_take_a_session_and_explain_says_what_it_takes(capsys: Capture) -> None:
    for name in ("one", "two"):
        Path(f"{name}.json").write_text(json.dumps(PLAIN | {"name": name}))
    assert main(["run", "one.json", "two.json"], FakeFleet) == 0
    capsys.readouterr()
    assert main(["replay", "reports/out/latest"], FakeFleet) == 0
    assert "2 runs, 2 as expected" in capsys.readouterr().out
    assert main(["recheck", "reports/out/latest", "one-batched-pp2tp2"], FakeFleet) == 0
    assert "3 runs, 3 as expected" in capsys.readouterr().out
    assert main(["explain", "reports/out/latest"], FakeFleet) == 2
    assert "a session of 2 runs, one is wanted here" in capsys.readouterr().err


# Options


@pytest.mark.parametrize("world", ["0", "-1", "257", "9" * 30])
def test_a_world_that_no_fleet_has_is_refused(world: str, capsys: Capture) -> None:
    Path("plain.json").write_text(json.dumps(PLAIN))
    told = refused(capsys, "run", "plain.json", "--world", world)
    assert told == f"--world is {world}: give a whole number from 1 to 256"


@pytest.mark.parametrize("out", ["", "no/such/folder/x.json", ".", "/proc/nothing", "nul\0"])
def test_json_that_cannot_be_written_is_refused_before_the_runs(out: str, capsys: Capture) -> None:
    Path("plain.json").write_text(json.dumps(PLAIN))
    refused(capsys, "run", "plain.json", "--json", out)


def test_a_refused_command_leaves_no_json_file(capsys: Capture) -> None:
    refused(capsys, "run", "nowhere", "--json", "out.json")
    assert not Path("out.json").exists()


def test_a_full_json_file_is_the_environments_fault(capsys: Capture) -> None:
    Path("plain.json").write_text(json.dumps(PLAIN))
    assert main(["run", "plain.json", "--json", "/dev/full"], FakeFleet) == 3
    assert capsys.readouterr().err.startswith("testbed: /dev/full: cannot be written (No space")


def test_lists_are_plain_text(capsys: Capture) -> None:
    assert main(["list"], FakeFleet) == 0
    assert "``" not in capsys.readouterr().out


# Records


def kept(folder: Path, change: Any) -> Path:
    """A record of two ranks, changed as data."""
    data = record.encode(clean(scenario(topology="pp2tp1")))
    change(data)
    file = folder / record.RECORD_FILE
    file.write_bytes(gzip.compress(json.dumps(data).encode()))
    return file


def put(value: Any, *path: Any) -> Any:
    """A change: ``value`` at that place of the record."""

    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


BEGIN, END, FINAL = 0, 1, -1  # places among the events of a rank


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (put("x", "wall_ms"), "Expected `float`, got `str` - at `$.wall_ms`"),
        (put("over", "ended"), "Invalid enum value 'over' - at `$.ended`"),
        (put(None, "ranks", 0), "Expected `object`, got `null` - at `$.ranks[0]`"),
        (put("1", "ranks", 0, "rank"), "Expected `int`, got `str` - at `$.ranks[0].rank`"),
        (put(1, "ranks", 0, "rank"), "its ranks are [1, 1]"),
        (put(9, "ranks", 0, "rank"), "its ranks are [9, 1]"),
        (put("x", "ranks", 0, "events", 0, 0), "ranks[0].events[0]: no event has the code 'x'"),
        (put(99, "ranks", 0, "events", 0, 0), "ranks[0].events[0]: no event has the code 99"),
        (put(-1, "ranks", 0, "events", 0, 0), "ranks[0].events[0]: no event has the code -1"),
        (put([], "ranks", 0, "events", 0), "ranks[0].events[0]: no event has the code None"),
        (put("1", "ranks", 1, "events", 0, 1), "ranks[1].events[0]: Expected `int`, got `str`"),
        (put(-7, "ranks", 1, "events", 0, 1), "ranks[1].events[0]: step is -7"),
        (put([["w0"]], "ranks", 0, "events", BEGIN, 3), "['w0'] is no [key, ready]"),
        (put([["w0", 1]], "ranks", 0, "events", BEGIN, 3), "['w0', 1] is no [key, ready]"),
        (put([0], "ranks", 0, "events", END, 9), "locks are [0]"),
        (put({}, "ranks", 0, "events", FINAL, 3), "{} are no books of a pool"),
        (put(0, "scenario", "steps"), "its scenario: steps is 0"),
        (put(2, "format"), "record format 2, this testbed reads 1"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "replay", "recheck"])
def test_a_record_of_wrong_types_is_refused_by_file_and_place(
    command: str, change: Any, told: str, folder: Path, capsys: Capture
) -> None:
    said = refused(capsys, command, str(kept(folder, change)))
    assert record.RECORD_FILE in said
    assert told in said


@pytest.mark.parametrize("content", [b"", b"[]", b'"x"', b"null", b"{", b"[" * 100_000])
def test_a_record_that_is_no_record_is_refused(
    content: bytes, folder: Path, capsys: Capture
) -> None:
    (folder / record.RECORD_FILE).write_bytes(gzip.compress(content))
    assert record.RECORD_FILE in refused(capsys, "explain", str(folder))


def test_a_record_with_a_flipped_byte_is_refused_wherever_it_is(folder: Path) -> None:
    file = kept(folder, lambda data: None)
    raw = file.read_bytes()
    accepted = []
    for place in range(len(raw)):
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 0x55]) + raw[place + 1 :])
        try:
            record.load(file)
        except BadInput:
            continue
        accepted.append(place)
    # Of a gzip header: flags that nobody reads, time, and the system it was made on.
    assert set(accepted) <= set(range(3, 10))


# The lines themselves


def test_a_line_is_one_line_whatever_it_quotes() -> None:
    told = str(BadInput("two\nlines\tand \x1b[31mred " + "x" * 5000 + " end"))
    assert told.startswith("two lines and \\x1b[31mred xxx")
    assert told.endswith("xxx end")
    assert len(told) < 1100
    assert one_line("漢字") == "漢字"


def test_what_is_wrong_inside_is_told_with_its_place_and_kind() -> None:
    with pytest.raises(catalog.NamesNobody, match=r"^a\.json: nobody$"), naming("a.json"):
        raise catalog.NamesNobody("nobody")
    assert brief("a" * 500).startswith("'aaa")
    assert len(brief("a" * 500)) < 70


# Output and interruption, of the real command line


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(catalog.BUILTIN.parents[1]))


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("arguments", ["list faults", "--help"])
def test_a_full_standard_output_is_one_line_and_3(
    arguments: str, pytester: pytest.Pytester
) -> None:
    with open("/dev/full", "w") as full, open("err", "w") as err:
        command = [sys.executable, "-m", "testbed", *arguments.split()]
        process = pytester.popen(command, stdout=full, stderr=err)
        assert process.wait() == 3
    told = "testbed: standard output cannot be written: No space left on device\n"
    assert Path("err").read_text() == told


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("swallow", ["", "except KeyboardInterrupt: pass"])
def test_ctrl_c_while_modules_are_imported_is_one_line_and_130(
    swallow: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands before the real package: Ctrl-C comes while it is imported, wherever that is done.
    handler = swallow or "finally: pass"
    source = f"import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\n{handler}\n"
    pytester.makepyfile(tabulate=source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", os.environ["PYTHONPATH"]]))
    run = pytester.run(sys.executable, "-m", "testbed", "list")
    assert (run.ret, run.errlines, run.outlines) == (130, ["testbed: interrupted"], [])


def test_ctrl_c_stays_ignored_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_import() -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return lambda _: 0

    monkeypatch.setattr(command_line, "_command_line", interrupted_import)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert command_line.main() == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_after_the_imports_is_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    monkeypatch.setattr(command_line, "_command_line", lambda: interrupted)
    assert command_line.main() == 130
    assert capfd.readouterr().err == "testbed: interrupted\n"
