"""What starts hosts on other machines: torchrun's command, TorchX, a Slurm batch file."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.torchrun_node import main, node_command
from testbed.errors import BadInput
from testbed.scenario import from_object
from testbed.world import Fleet, Meeting
from testbed.world.fleet_file import FLEET_ENV, FLEET_FILE_ENV, FleetFile

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


def option(command: list[str], name: str) -> str:
    (found,) = [word for word in command if word.startswith(f"--{name}=")]
    return found.removeprefix(f"--{name}=")


def test_each_node_starts_its_share_and_the_first_one_holds_the_rendezvous() -> None:
    first, second = (node_command(TWO_NODES, "localhost:4711", node) for node in (0, 1))
    for command in (first, second):
        assert option(command, "nnodes") == "2"
        assert option(command, "nproc-per-node") == "2"
        assert option(command, "rdzv-endpoint") == "localhost:4711"
        assert "secret" not in " ".join(command)
    assert option(first, "rdzv-id") == option(second, "rdzv-id")
    assert option(first, "rdzv-conf").startswith("is_host=true,")
    assert option(second, "rdzv-conf").startswith("is_host=false,")


def test_without_numbers_the_node_that_has_the_address_holds_the_rendezvous() -> None:
    here = node_command(TWO_NODES, "127.0.0.1", None)
    elsewhere = node_command(TWO_NODES, "192.0.2.200", None)
    assert option(here, "rdzv-conf").startswith("is_host=true,")
    assert option(elsewhere, "rdzv-conf").startswith("is_host=false,")
    assert option(here, "rdzv-endpoint") == "127.0.0.1:29400"


def test_several_nodes_need_a_rendezvous_and_one_does_not() -> None:
    alone = FleetFile("127.0.0.1", 4000, "secret", world=4, nodes=1)
    assert option(node_command(alone, "", None), "nproc-per-node") == "4"
    with pytest.raises(BadInput, match="several nodes need a rendezvous"):
        node_command(TWO_NODES, "", None)
    with pytest.raises(BadInput, match="give HOST or HOST:PORT"):
        node_command(TWO_NODES, "here:port", None)


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_torchx_starts_the_nodes_of_a_fleet(met: Meeting, tmp_path: Path) -> None:
    pytest.importorskip("torchx", reason="torchx is absent: pip install -r requirements-torchx.txt")
    component = "launchers/torchx_component.py:hosts"
    mine = {"--nodes": "2", "--fleet_file": str(tmp_path / "fleet.json"), "--port": free_port()}
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
            "RENDEZVOUS_PORT": str(free_port()),
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
