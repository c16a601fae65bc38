"""What starts hosts on other machines: torchrun's command, TorchX, a Slurm batch file."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.torchrun_node import main, number_of
from testbed.fleet import Fleet, Meeting
from testbed.fleet.dial import number_hosts
from testbed.fleet.fleet_file import FLEET_ENV, FLEET_FILE_ENV, NODE_ENV, FleetFile
from testbed.model.errors import BadInput
from testbed.model.scenario import from_object

ROOT = Path(__file__).resolve().parents[1]
TWO_NODES = FleetFile("127.0.0.1", 4000, "secret", world=4, nodes=2, name="cafe")
LIMIT_S = 900  # patience, no measure: torch is imported four times

ONE_WRITE = from_object(
    {
        "name": "one-write",
        "topology": {"pp": 2, "tp": 1},
        "steps": 4,
        "workload": {"kind": "scripted", "writes": [{"at": 0, "ready_after": 1}]},
    },
    "test",
)


def test_each_node_of_several_must_say_which_one_it_is() -> None:
    assert [number_of(TWO_NODES, node) for node in (0, 1)] == [0, 1]
    with pytest.raises(BadInput, match="give --node N, from 0 to 1"):
        number_of(TWO_NODES, None)
    with pytest.raises(BadInput, match="--node 2: give a number from 0 to 1"):
        number_of(TWO_NODES, 2)
    assert number_of(FleetFile("127.0.0.1", 4000, "secret", world=4, nodes=1), None) == 0


def test_the_hosts_of_a_node_sit_after_those_of_the_nodes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("GROUP_RANK", "0"), (NODE_ENV, "1")):
        monkeypatch.setenv(name, value)
    number_hosts(TWO_NODES)
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "GROUP_RANK")] == ["3", "4", "1"]


def test_a_node_without_a_fleet_file_is_told_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FLEET_FILE_ENV, raising=False)
    monkeypatch.delenv(FLEET_ENV, raising=False)
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"testbed node: no fleet file: set {FLEET_FILE_ENV}")


@pytest.fixture
def met(tmp_path: Path) -> Iterator[Meeting]:
    with Meeting(2, 2, "127.0.0.1:0", tmp_path / "fleet.json") as meeting:
        yield meeting


def test_torchx_starts_the_nodes_of_a_fleet(met: Meeting, tmp_path: Path) -> None:
    pytest.importorskip("torchx", reason="torchx is absent: pip install -r requirements-torchx.txt")
    component = "launchers/torchx_component.py:hosts"
    mine = {"--nodes": "2", "--fleet_file": str(tmp_path / "fleet.json")}
    torchx = subprocess.Popen(
        [
            *(sys.executable, "-m", "torchx.cli.main", "run"),
            *("--wait", "-s", "local_cwd", component),
            *(str(word) for pair in mine.items() for word in pair),
        ],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with Fleet(2, meeting=met) as fleet:
            assert fleet.run(ONE_WRITE).ended == "finished"
            assert sorted(guest.node for guest in fleet._guests) == [0, 1]
        said, _ = torchx.communicate(timeout=LIMIT_S)
    finally:
        torchx.kill()
    assert "SUCCEEDED" in said


# What a Slurm cluster would do with `srun [options] command`: the command once per node.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & nodes="${nodes:-} $!"; done
trap 'kill $nodes' TERM
for node in $nodes; do wait "$node" || exit; done
"""
HOSTNAME = "#!/bin/sh\necho 127.0.0.1\n"


def test_the_batch_file_runs_the_cases_on_the_nodes_that_slurm_gives_it(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    for name, script in (("srun", SRUN), ("hostname", HOSTNAME)):
        (cluster / name).write_text(script)
        (cluster / name).chmod(0o755)
    one_case = ["-k", "skew-followers-slower-1-batched and pp2tp1"]
    job = subprocess.run(
        ["bash", "launchers/slurm.sbatch", *one_case, "--runs-out", str(tmp_path / "out")],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{cluster}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "HOSTS_PER_NODE": "1",
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_ID": f"test-{os.getpid()}",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "1 run, 1 as expected: 1 ok" in job.stdout
