"""The generated conversation trace: the same for a seed, and like the published ones."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.model.errors import BadInput
from testbed.model.scenario import Scenario, Sizes
from testbed.model.topology import Topology
from testbed.workloads import conversation, parse, trace
from testbed.workloads.__main__ import main as print_trace
from testbed.workloads.conversation import TraceLine

ROOT = Path(__file__).parents[1]
SEEDS = range(5)


def lines(seed: int, count: int = 300) -> list[TraceLine]:
    return list(conversation.generated(seed, count))


def hits(made: Sequence[TraceLine]) -> list[int]:
    """Of each request, how many of its first blocks an earlier one has."""
    seen: set[int] = set()
    found = []
    for line in made:
        fresh = (at for at, block in enumerate(line.hash_ids) if block not in seen)
        found.append(next(fresh, len(line.hash_ids)))
        seen |= set(line.hash_ids)
    return found


def test_a_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert lines(7) == lines(7)
    assert lines(7) != lines(8)


def test_another_process_generates_the_same_trace() -> None:
    """Each rank generates it for itself, on several machines too."""
    printed = {
        subprocess.run(
            [sys.executable, "-m", "testbed.workloads", "--requests", "40"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (text,) = printed
    blocks = [tuple(json.loads(line)["hash_ids"]) for line in text.splitlines()]
    assert blocks == [line.hash_ids for line in lines(0, 40)]


def test_a_longer_trace_begins_with_the_shorter_one() -> None:
    assert lines(3, 300)[:100] == lines(3, 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_are_like_those_published(seed: int) -> None:
    """Published, of windows of 300 requests: median input 5,700 to 9,200, mean 11,600 to 15,300,
    median output 356 to 398; no input below 890 or above 123,192."""
    made = lines(seed)
    inputs = [line.input_length for line in made]
    outputs = [line.output_length for line in made]
    assert 5_000 <= statistics.median(inputs) <= 12_000
    assert 9_000 <= statistics.mean(inputs) <= 19_000
    assert 280 <= statistics.median(outputs) <= 430
    assert min(inputs) >= 890
    assert max(inputs) <= 123_192


@pytest.mark.parametrize("seed", SEEDS)
def test_prefixes_are_shared_like_published_ones(seed: int) -> None:
    """Published: 30 % to 50 % of all blocks are hits; 41 % of the requests continue a
    conversation once the trace is under way; all have the same first block."""
    made = lines(seed)
    found = hits(made)
    share = sum(found) / sum(len(line.hash_ids) for line in made)
    assert 0.30 <= share <= 0.50
    assert 0.30 <= sum(hit > 1 for hit in found) / len(made) <= 0.45
    assert len({line.hash_ids[0] for line in made}) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_arrive_as_published(seed: int) -> None:
    """Published: timestamps are multiples of 3 s; 3,000 requests in 987 s, 329 ms each."""
    stamps = [line.timestamp for line in lines(seed)]
    assert all(stamp % 3_000 == 0 for stamp in stamps)
    assert all(before <= after for before, after in pairwise(stamps))
    assert 250 <= stamps[-1] / len(stamps) <= 410


def test_a_later_turn_repeats_the_full_blocks_of_the_earlier_one_and_no_other() -> None:
    made = lines(0)
    found = hits(made)
    full = {line.hash_ids[: line.input_length // 512] for line in made}
    for line, hit in zip(made, found, strict=True):
        assert hit <= 1 or line.hash_ids[:hit] in full


def test_what_is_printed_is_read_as_a_request_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_trace(["--requests", "50", "--seed", "4"]) == 0
    text = capsys.readouterr().out
    path = tmp_path / "made.jsonl"
    path.write_text(text)
    assert [line.blocks for line in trace.read(path)] == [line.hash_ids for line in lines(4, 50)]
    assert set(json.loads(text.splitlines()[0])) == {
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
    }


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_number_of_requests_out_of_bounds_is_bad_input(count: int) -> None:
    given = Scenario(
        name="x", topology=Topology(), workload={"kind": "conversation", "requests": count}
    )
    with pytest.raises(BadInput, match=f"workload.requests is {count}"):
        parse(given)


def test_pools_too_small_for_the_largest_request_are_bad_input() -> None:
    small = Sizes(device_pages=16)
    workload = {"kind": "conversation"}
    given = Scenario(name="x", topology=Topology(), sizes=small, workload=workload)
    with pytest.raises(BadInput, match=r"sizes\.device_pages is 16"):
        parse(given)
