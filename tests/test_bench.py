"""The benchmark on real ranks: what is measured is what it says, and the command keeps it all."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.bench import cost, plots, stall, throughput
from testbed.bench.command import JSON_FILE, MARKDOWN_FILE
from testbed.bench.measure import fleet, run
from testbed.bench.plans import CostPlan, Model, PipelinePlan, Point, Setting, SkewPlan
from testbed.cli.command import main
from testbed.fleet import Fleet
from testbed.model.errors import EnvironmentFault
from testbed.model.topology import Topology
from tests.whole_case import LIMIT_S

ROOT = Path(__file__).resolve().parents[1]
PIPELINE = Topology(pp=2)
PROTOCOLS = ["separate", "batched", "fused", "deferred", "local", "world"]


@pytest.fixture(scope="module")
def two() -> Iterator[Fleet]:
    with fleet(2) as running:
        yield running


@pytest.fixture(scope="module")
def rows(two: Fleet) -> dict[tuple[str, str, str], Any]:
    """Cost of every protocol on two stages of two ranks, by subject, way and role."""
    plan = CostPlan(subjects=PROTOCOLS, rounds=2, block=5, warmup=2)
    found = cost.measure(two, plan, Topology(2, 2), Setting())
    return {(row["subject"], row["way"], row["role"]): row for row in found}


@pytest.mark.parametrize(
    ("subject", "role", "sent", "received", "collectives"),
    [
        # An agreement is a reduction on the leader stage and a message a hop; separate has two.
        ("separate", "leader", 2, 0, 2),
        ("separate", "last", 0, 2, 0),
        ("batched", "leader", 1, 0, 1),
        ("batched", "last", 0, 1, 0),
        ("fused", "leader", 1, 0, 1),
        ("deferred", "last", 0, 1, 0),
        # No message: each stage by itself, or all ranks at once.
        ("local", "last", 0, 0, 2),
        ("world", "last", 0, 0, 1),
    ],
)
def test_operations_per_step_and_role_are_those_of_the_protocol(
    rows: dict[Any, Any], subject: str, role: str, sent: int, received: int, collectives: int
) -> None:
    row = rows[subject, "plain", role]
    assert (row["sent"], row["received"], row["collectives"]) == (sent, received, collectives)
    assert row["ops"] == sent + received + collectives


def test_bytes_are_those_of_the_counts(rows: dict[Any, Any]) -> None:
    # Two int32, into the reduction and down the pipeline. Separate: one int32, all of it twice.
    assert rows["batched", "plain", "leader"]["bytes"] == 16
    assert rows["separate", "plain", "leader"]["bytes"] == 16
    assert rows["batched", "plain", "last"]["bytes"] == 0


def test_every_way_is_timed_and_set_against_what_ran_beside_it(rows: dict[Any, Any]) -> None:
    for subject, way in itertools.product(PROTOCOLS, ("raw", "plain", "recorded")):
        row = rows[subject, way, "all"]
        assert 0 < row["median_us"] <= row["p90_us"] <= row["p99_us"]
        assert row["steps"] == 10  # two rounds of five, warm-up excluded
        assert (row["x_raw"] is None) == (way == "raw")
        assert (row["x_plain"] is None) == (way == "plain")
    assert rows["batched", "recorded", "all"]["x_raw"]["median"] > 0
    assert rows["separate", "plain", "all"]["x_base"] is None  # it is the first
    assert rows["batched", "plain", "all"]["x_base"]["median"] > 0


def test_storage_is_one_more_agreement_inside_the_stage_and_its_reductions_are_blocking(
    two: Fleet,
) -> None:
    plan = CostPlan(subjects=["batched", "deferred"], rounds=1, block=3, warmup=1)
    found = cost.measure(two, plan, Topology(2, 2), Setting(storage=True))
    followers = [row for row in found if row["role"] == "last" and row["way"] == "raw"]
    assert [(row["received"], row["collectives"]) for row in followers] == [(1, 1), (1, 1)]


def test_a_follower_stalls_under_skew_where_only_leaders_are_counted(two: Fleet) -> None:
    skew_us = 200_000.0  # longer than a step takes on any machine
    plan = SkewPlan(
        subjects=["batched", "local"], rounds=1, skews_us=[0.0, skew_us], step_us=100.0, steps=5
    )
    found = stall.measure(two, plan, PIPELINE, Setting())
    stalls = {
        (row["subject"], row["skew_us"]): row["stall_median_us"]
        for row in found
        if row["role"] == "last"
    }
    assert stalls["batched", skew_us] > 0
    assert stalls["batched", 0.0] == 0
    # Each stage counts its own events: nothing is completed there that is not ready.
    assert stalls["local", skew_us] == 0
    assert {row["stall_median_us"] for row in found if row["role"] == "leader"} == {0}
    times = {(row["subject"], row["skew_us"], row["role"]): row["x_base"] for row in found}
    assert times["batched", skew_us, "last"] is None  # it is what the others are set against
    assert times["local", skew_us, "last"]["median"] < 1  # it does not wait for 0.2 s


def test_a_pipeline_spends_the_compute_that_it_is_told_and_counts_its_input(two: Fleet) -> None:
    point = Point(length=100, step_us=2000.0, steps=5)
    model = Model(chunk_tokens=50, shared_prefix=0.5)
    plan = PipelinePlan(subjects=["batched"], rounds=1, model=model, points=[point])
    found = run(two, plan, PIPELINE, Setting())
    (row,) = throughput.rows(plan, PIPELINE, found, "batched")
    # A step computes the half of one request that is not found: 100 input tokens, 5 steps.
    assert all(entry[5] == 500 for of in found.values() for entry in of[0]["pipeline"])
    assert row["compute_us"] >= 2000
    assert row["step_us"]["median"] >= row["compute_us"]


def test_a_rank_that_raises_is_told_in_one_line(two: Fleet) -> None:
    plan = CostPlan(subjects=["no-such-protocol"], rounds=1)
    with pytest.raises(EnvironmentFault, match=r"bench-cost on pp2tp1: .*no-such-protocol"):
        run(two, plan, PIPELINE, Setting())


def test_hosts_of_other_machines_fork_its_ranks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.json"
    command = [sys.executable, "-m", "launchers.torchrun_node", "--fleet-file", str(file)]
    node = subprocess.Popen(command, cwd=ROOT)
    monkeypatch.chdir(tmp_path)
    quick = ["--quick", "--world", "2", "--rounds", "1", "--only", "cost", "--subjects", "batched"]
    listen = ["--listen", "127.0.0.1:0", "--fleet-file", str(file)]
    try:
        assert main(["bench", *quick, *listen, "--out", "far"]) == 0
        assert node.wait(LIMIT_S) == 0
    finally:
        node.kill()  # its torchrun and hosts go with it
        node.wait()
    kept = msgspec.json.decode((tmp_path / "far" / JSON_FILE).read_bytes())
    assert {row["way"] for row in kept["sections"]["cost"]} == {"raw", "plain", "recorded"}


def test_the_command_shows_keeps_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["bench", "--quick", "--world", "2", "--rounds", "1", "--only", "cost,stall"]
    named = ["--subjects", "batched", "--out"]
    monkeypatch.setattr(sys, "argv", ["testbed", *quick, *named, "one"])
    monkeypatch.chdir(tmp_path)
    assert main([*quick, *named, "one"]) == 0
    out, _ = capsys.readouterr()
    assert "Agreement cost of a step" in out
    assert "Stall under skew" in out
    kept = msgspec.json.decode((tmp_path / "one" / JSON_FILE).read_bytes())
    assert "--subjects batched" in kept["command"]
    assert kept["parameters"]["topology"] == "pp2tp1"
    assert set(kept["machine"]) >= {"cpu", "cores", "torch"}
    assert (tmp_path / "one" / MARKDOWN_FILE).read_text().startswith("# What one agreement costs")

    earlier = str(tmp_path / "one" / JSON_FILE)
    assert main([*quick, *named, "two", "--compare", earlier]) == 0
    out, _ = capsys.readouterr()
    assert "Compared with the earlier run" in out
    assert "now / then" in out
    assert "the machines differ" not in out


def test_without_matplotlib_there_are_tables_and_a_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    chosen = ["--world", "2", "--rounds", "1", "--only", "cost", "--subjects", "batched"]
    assert main(["bench", "--quick", *chosen, "--out", "here"]) == 0
    out, _ = capsys.readouterr()
    assert plots.WHY_NOT in out
    assert sorted(file.name for file in (tmp_path / "here").iterdir()) == [JSON_FILE, MARKDOWN_FILE]


def test_a_folder_that_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["bench", "--out", str(tmp_path / "file")]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "cannot be kept" in err


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--only", "speed"], "--only 'speed'"),
        (["--subjects", "no-such"], "subject 'no-such' is unknown"),
        (["--world", "0"], "--world is 0"),
        (["--topology", "2x2"], "write it as pp2tp2"),
        (["--shared-prefix", "1"], "--shared-prefix is 1.0"),
        (["--compare", "absent.json"], "absent.json: cannot be read"),
        (["--compare", ""], "--compare is empty"),
        (["--seed", "-5"], "seed is -5"),
        (["--compute", "nan"], "--compute is nan"),
        (["--compute", "1e6"], "a step of 8,192 s"),
        (["--chunk", str(10**12)], "--chunk is 1000000000000"),
        (["--link-gb-s", "inf"], "--link-gb-s is inf"),
        (["--link-latency", "nan"], "--link-latency is nan"),
        (["--gain", "separate,separate"], "give two subjects that differ"),
        (["--only", "stall", "--topology", "pp1tp2"], "stall needs two stages"),
        (["--only", "scaling", "--max-ranks", "1"], "scaling over at most 1 ranks"),
        (["--out", ""], "--out is empty"),
        (["--fleet-file", "", "--listen", "127.0.0.1:0"], "--fleet-file is empty"),
        (["--nodes", "2"], "--nodes says nothing without --listen"),
        (["--backend", "nccl", "--listen", "127.0.0.1:0"], "one machine only"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], wrong: list[str], says: str
) -> None:
    assert main(["bench", *wrong]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err
