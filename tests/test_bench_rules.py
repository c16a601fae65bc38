"""The benchmark's arithmetic: schedule, ratios, crossing, settings, comparison. No ranks."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.bench import compare, document, settings, tables
from testbed.bench.cost import overhead
from testbed.bench.measure import roles
from testbed.bench.plans import CostPlan, Model, PipelinePlan, Point, Setting, plan_of, scenario_of
from testbed.bench.scaling import topologies
from testbed.bench.schedule import schedule
from testbed.bench.stats import crossing, falling, quantile, ratio, spread
from testbed.bench.throughput import claimed_saving_us_per_token, curve, rows
from testbed.model.errors import BadInput
from testbed.model.scenario import from_object, to_object
from testbed.model.topology import Topology


def test_a_long_request_is_computed_chunk_by_chunk_and_its_prefix_loaded_once() -> None:
    steps = schedule(length=20, shared_prefix=0.5, chunk=4, steps=4)
    # 10 tokens to compute: two full chunks, then the last 2 beside the first 2 of the next request.
    assert [step.computed for step in steps] == [(4,), (4,), (2, 2), (4,)]
    assert [step.loaded for step in steps] == [(10,), (), (10,), ()]


def test_short_requests_share_a_chunk() -> None:
    (step,) = schedule(length=4, shared_prefix=0.5, chunk=8, steps=1)
    assert step.computed == (2, 2, 2, 2)
    assert step.loaded == (2, 2, 2, 2)
    assert step.input_tokens == 16


def test_without_a_shared_prefix_nothing_is_loaded() -> None:
    steps = schedule(length=3, shared_prefix=0.0, chunk=2, steps=3)
    assert [step.loaded for step in steps] == [(), (), ()]
    assert sum(step.input_tokens for step in steps) == 6


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([7.0], 0.99) == 7.0


def test_a_ratio_is_taken_round_by_round_so_that_what_meets_both_sides_cancels() -> None:
    times = ratio([20.0, 200.0, 2000.0], [10.0, 100.0, 1000.0])
    assert times == {"median": 2.0, "low": 2.0, "high": 2.0, "bounds": None}


@pytest.mark.parametrize(
    ("count", "bounds"),
    # Published tables of these order statistics: n = 10: 2nd and 9th, 20: 6th and 15th, 100: 40th
    # and 61st. With five the smallest and the largest miss the median in 6.25 % of all cases.
    [(1, None), (5, None), (6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (100, (40, 61))],
)
def test_a_median_lies_between_two_of_the_values(
    count: int, bounds: tuple[int, int] | None
) -> None:
    assert spread([float(value) for value in range(count, 0, -1)])["bounds"] == bounds


def test_neighbours_that_contradict_a_falling_curve_are_averaged() -> None:
    assert falling([3.0, 2.0, 1.0]) == [3.0, 2.0, 1.0]
    assert falling([1.0, 3.0, 2.0, 0.0]) == [2.0, 2.0, 2.0, 0.0]
    assert falling([]) == []


def test_a_crossing_lies_between_its_two_points_in_log_x() -> None:
    assert crossing([0.0, 100.0], [0.5, 0.3], 0.4) == pytest.approx(50.0)
    assert crossing([100.0, 10_000.0], [0.5, 0.3], 0.4) == pytest.approx(1000.0)


@pytest.mark.parametrize("gains", [[0.3, 0.2], [0.6, 0.5]])
def test_a_curve_that_stays_on_one_side_has_no_crossing(gains: list[float]) -> None:
    assert crossing([0.0, 100.0], gains, 0.37) is None


def test_roles_are_leader_middle_last() -> None:
    assert roles(Topology(pp=3, tp=2)) == {"leader": [0, 1], "middle": [2, 3], "last": [4, 5]}
    assert roles(Topology(tp=2)) == {"leader": [0, 1]}


def test_scaling_goes_as_far_as_it_is_told() -> None:
    assert {str(each) for each in topologies(4)} == {
        "pp1tp2",
        "pp2tp1",
        "pp1tp4",
        "pp2tp2",
        "pp4tp1",
    }
    # All 3 x 4 combinations but the one with a single rank.
    assert len(topologies(32)) == 11


def test_a_plan_survives_its_way_to_the_hosts() -> None:
    plan = settings.throughput(settings.QUICK, ["batched", "fused"], Model(), 1.0)
    sent = to_object(scenario_of(plan, Topology(2, 2), Setting(seed=3, storage=True)))
    assert plan_of(from_object(sent, "test")) == plan


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: settings.sections_of("cost,speed"), "--only 'speed': give any of cost, stall"),
        (lambda: settings.pair_of("batched"), "--gain 'batched': give two subjects"),
    ],
)
def test_what_is_unknown_is_told_with_what_would_do(make: Any, says: str) -> None:
    with pytest.raises(BadInput) as told:
        make()
    assert says in str(told.value)


def pipeline(elapsed_us: dict[str, list[float]], points: int) -> tuple[PipelinePlan, Any]:
    """A pipeline of 10 steps of 100 tokens a point; elapsed per subject and point, on two ranks of
    which the second is a tenth faster."""
    plan = PipelinePlan(
        subjects=list(elapsed_us),
        rounds=1,
        model=Model(),
        points=[Point(length=100, step_us=float(100 * at), steps=10) for at in range(points)],
    )

    def entries(share: float) -> list[Any]:
        return [
            [at, subject, of[at] * 1e3 * share, at * 1e6, 5e5, 1000]
            for at in range(points)
            for subject, of in elapsed_us.items()
        ]

    return plan, {0: [{"pipeline": entries(1.0)}], 1: [{"pipeline": entries(0.9)}]}


def test_tokens_per_second_are_those_of_the_slowest_rank() -> None:
    plan, found = pipeline({"separate": [2000.0], "batched": [1000.0]}, points=1)
    slow, fast = rows(plan, Topology(2), found, "separate")
    assert slow["tokens_per_s"]["median"] == pytest.approx(500_000)
    assert slow["x_base"] is None
    assert fast["tokens_per_s"]["median"] == pytest.approx(1_000_000)
    assert fast["x_base"]["median"] == pytest.approx(2.0)
    assert fast["check_us"] == pytest.approx(50.0)


def test_the_gain_falls_with_compute_and_its_point_is_found() -> None:
    # Steps of 200 and 100 us without compute, and 100 us more of it at each further point.
    plan, found = pipeline(
        {"separate": [2000.0, 3000.0, 4000.0], "batched": [1000.0, 2000.0, 3000.0]}, points=3
    )
    told = curve(plan, Topology(2), found, ["separate", "batched"])
    assert [point["gain"]["median"] for point in told["points"]] == pytest.approx([1.0, 0.5, 1 / 3])
    assert [point["model_gain"] for point in told["points"]] == pytest.approx([1.0, 0.5, 1 / 3])
    # Between 100 us (+50 %) and 200 us (+33 %): 100 * 2 ** ((0.5 - 0.37) / (0.5 - 1 / 3)).
    assert told["reached_at_us"]["median"] == pytest.approx(171.7, abs=0.1)
    assert "+37% at 172 us" in tables.reached(told)


def test_a_gain_that_is_never_reached_is_said_with_the_best_there_was() -> None:
    plan, found = pipeline({"separate": [1100.0, 1100.0], "batched": [1000.0, 1000.0]}, points=2)
    told = curve(plan, Topology(2), found, ["separate", "batched"])
    assert tables.reached(told) == "+37% is not reached: +10.0% at most"


def test_the_claim_is_half_a_microsecond_a_token() -> None:
    # 1 / 494,000 - 1 / 677,000 of a second.
    assert claimed_saving_us_per_token() == pytest.approx(0.547, abs=0.001)


def cost_row(subject: str, way: str, role: str, median_us: Any, **more: Any) -> dict[str, Any]:
    """One row of the section ``cost``."""
    counts = {"ops": 2, "sent": 1, "received": 0, "collectives": 1, "bytes": 16, "steps": 10}
    times = {"median_us": median_us, "p90_us": median_us, "p99_us": median_us, "cpu_us": 1.0}
    what = {"topology": "pp2tp1", "subject": subject, "way": way, "role": role}
    ratios = {"x_raw": None, "x_plain": None, "base": "batched", "x_base": None}
    return {**what, **counts, **times, **ratios, **more}


def one(times: float, apart: float = 0.0) -> dict[str, Any]:
    """A ratio, its quartiles and bounds that far from it."""
    low, high = times - apart, times + apart
    return {"median": times, "low": low, "high": high, "bounds": (low, high)}


def test_overhead_is_judged_over_all_ranks_against_its_targets() -> None:
    told = overhead(
        [
            cost_row("batched", "plain", "leader", 100, x_raw=one(9.0)),
            cost_row("batched", "plain", "all", 100, x_raw=one(1.2)),
            cost_row("batched", "recorded", "all", 104, x_plain=one(1.04), x_raw=one(1.2)),
            cost_row("fused", "plain", "all", 100, x_raw=one(1.0)),
        ],
        oversubscribed=True,
    )
    assert [(row["what"], row["subject"], row["met"]) for row in told] == [
        ("subject", "batched", "no"),
        ("recorder", "batched", "yes"),
    ]
    assert all(row["oversubscribed"] for row in told)


@pytest.mark.parametrize("times", [1.0, 1.1])
def test_a_target_within_the_bounds_of_a_median_is_neither_met_nor_missed(times: float) -> None:
    (told,) = overhead([cost_row("fused", "recorded", "all", 1, x_plain=one(times, apart=0.06))])
    assert told["met"] == "open"


def run_of(median_us: float, **machine: Any) -> document.Document:
    """A whole document with one figure."""
    about = {"cpu": "one", "cores": 2, "memory_gib": 8, "kernel": "6", "python": "3.11"}
    parameters = {"topology": "pp2tp1", "backend": "gloo", "seed": 0, "storage": False, "plans": {}}
    return document.make(
        "testbed bench",
        {**about, "torch": "2.13", **machine},
        {"before": 0.1, "after": 2.0, "calm": True},
        parameters,
        {"cost": [cost_row("batched", "plain", "all", median_us)]},
    )


def test_a_comparison_gives_ratios_and_nothing_else_to_say_on_one_machine() -> None:
    table = compare.table(run_of(50), run_of(100))
    assert table.cells == [["cost", "pp2tp1 batched plain all", "median us", "0.50", "lower"]]
    assert list(table.notes) == []


def test_a_comparison_says_in_what_the_machines_differ() -> None:
    table = compare.table(run_of(50, cores=64), run_of(100))
    assert list(table.notes) == ["the machines differ in cores: 2 then, 64 now"]


def test_a_figure_that_one_of_them_lacks_is_left_out() -> None:
    before = run_of(100)
    before["sections"] = {"cost": [cost_row("fused", "plain", "all", 7)]}
    assert compare.table(run_of(50), before).cells == []


@pytest.mark.parametrize(
    ("text", "says"), [("[1]", "no benchmark of format 1"), ("{", "is not JSON")]
)
def test_what_is_no_benchmark_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=says):
        document.load(file)


@pytest.mark.parametrize(
    "damage",
    [
        {"machine": None},
        {"machine": [], "load": 3},
        {"load": {}},
        {"sections": None},
        {"sections": {"cost": {"rows": 1}}},
        {"sections": {"cost": [None]}},
        {"sections": {"cost": [{"median_us": 3}]}},
        {"sections": {"cost": [cost_row("batched", "plain", "all", "fast")]}},
        {"sections": {"curve": [1]}},
    ],
)
def test_a_damaged_benchmark_is_refused_before_anything_is_measured(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    file = tmp_path / "old.json"
    file.write_bytes(msgspec.json.encode({**run_of(50), **damage}))
    with pytest.raises(BadInput, match=r"old\.json: no benchmark of this testbed"):
        compare.earlier(str(file))


def test_a_sound_one_is_read_and_two_without_common_figures_say_so(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_bytes(msgspec.json.encode(run_of(50)))
    before = compare.earlier(str(file))
    assert compare.table(run_of(100), before).cells[0][3] == "2.00"
    before["sections"] = {}
    assert compare.table(run_of(100), before).notes == [
        "the runs have no figure in common: nothing to compare"
    ]


def test_a_table_names_its_machine_and_whether_it_was_busy() -> None:
    found = run_of(50)
    assert "cpu one, cores 2" in tables.terminal(found)
    assert "trust no figure" not in tables.terminal(found)
    found["load"]["calm"] = False
    assert "trust no figure" in tables.terminal(found)


def test_markdown_has_the_table_and_the_pictures() -> None:
    told = tables.markdown(run_of(50), ["curve.svg"])
    assert "| pp2tp1" in told
    assert "![curve.svg](curve.svg)" in told


def test_scaling_measures_bare_operations_and_the_plain_subject_only() -> None:
    plan = settings.scaling(settings.FULL, ["separate", "batched"])
    assert isinstance(plan, CostPlan)
    assert plan.ways == ("raw", "plain")
