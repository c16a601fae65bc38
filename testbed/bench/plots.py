"""The pictures: gain by compute per step, cost by topology, stall by skew. SVG and PNG.

matplotlib is an extra (``requirements-plots.txt``): without it there are tables and no pictures.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from testbed.bench.measure import LEADER
from testbed.bench.plans import PLAIN, RAW
from testbed.bench.tables import reached

Row = dict[str, Any]

WHY_NOT = "no pictures: matplotlib is not installed (pip install -r requirements-plots.txt)"
_ENDINGS = ("svg", "png")
# Colours that stay apart for colour-blind readers, and in print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKS = "os^Dv<>p"


def draw(document: Row, folder: Path) -> list[str]:
    """Names of the pictures made in ``folder``; raises ImportError without matplotlib."""
    # An extra, and slow to import: only those who draw pay for it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pictures: dict[str, Callable[[Any, Any], None]] = {
        "curve": _gain,
        "scaling": _topologies,
        "stall": _stall,
    }
    made = []
    for section, paint in pictures.items():
        found = document["sections"].get(section)
        if not found:
            continue
        figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
        paint(axes, found)
        axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        machine = document["machine"]
        figure.supxlabel(
            f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, "
            f"{document['parameters']['backend']}",
            fontsize=8,
            color="#666666",
        )
        for ending in _ENDINGS:
            figure.savefig(folder / f"{section}.{ending}", dpi=120)
            made.append(f"{section}.{ending}")
        pyplot.close(figure)
    return made


def _gain(axes: Any, found: Row) -> None:
    points = found["points"]
    xs = [point["compute_us"] for point in points]
    gains = [point["gain"]["median"] * 100 for point in points]
    spreads = [
        [(point["gain"]["median"] - point["gain"]["low"]) * 100 for point in points],
        [(point["gain"]["high"] - point["gain"]["median"]) * 100 for point in points],
    ]
    axes.errorbar(
        xs, gains, yerr=spreads, color=_COLOURS[0], marker="o", capsize=3, label="measured"
    )
    axes.plot(
        xs,
        [point["model_gain"] * 100 for point in points],
        color=_COLOURS[1],
        linestyle="--",
        label="expected: step without compute, and the compute",
    )
    target = found["target"] * 100
    axes.axhline(target, color="#444444", linewidth=1, linestyle=":", label=f"{target:+.0f} %")
    at_us = found["reached_at_us"]["median"]
    if at_us is not None:
        axes.plot(
            [at_us],
            [target],
            color=_COLOURS[2],
            marker="*",
            markersize=15,
            linestyle="",
            label=reached(found).replace(" us ", " µs "),
        )
    # One wild round must not flatten the curve: its error bar may leave the picture.
    lowest, highest = min(*gains, 0.0), max(*gains, target)
    axes.set_ylim(lowest - 15, highest + 0.25 * (highest - lowest) + 10)
    axes.set_xscale("symlog", linthresh=100, linscale=0.5)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %")
    axes.set_xlabel("compute per step and stage, as measured (µs; linear below 100, then log)")
    axes.set_ylabel(f"throughput of {found['better']} over {found['base']}")
    axes.set_title(f"What one agreement fewer buys: {found['topology']}, {found['length']} tokens")
    axes.legend(loc="best", fontsize=9)


def _topologies(axes: Any, rows: Sequence[Row]) -> None:
    subjects = list(dict.fromkeys(row["subject"] for row in rows))
    groups = sorted({row["group"] for row in rows})
    shown = [(subject, PLAIN) for subject in subjects] + [(subjects[-1], RAW)]
    lines = ("-", "--", ":", "-.")
    for place, (subject, way) in enumerate(shown):
        for at, group in enumerate(groups):
            of = sorted(
                (row["hops"], row["median_us"], row["oversubscribed"])
                for row in rows
                if (row["subject"], row["way"], row["group"]) == (subject, way, group)
            )
            if not of:
                continue
            hops, costs, _ = zip(*of, strict=True)
            colour, mark = _COLOURS[place % len(_COLOURS)], _MARKS[at % len(_MARKS)]
            label = f"{subject}{' (bare operations)' if way == RAW else ''}, tp {group}"
            axes.plot(hops, costs, color=colour, linestyle=lines[at % len(lines)], linewidth=1.2)
            for hop, cost, busy in of:
                fill = "white" if busy else colour
                axes.plot([hop], [cost], color=colour, marker=mark, markerfacecolor=fill)
            axes.plot(
                [], [], color=colour, linestyle=lines[at % len(lines)], marker=mark, label=label
            )
    axes.plot(
        [],
        [],
        color="#444444",
        marker="o",
        markerfacecolor="white",
        linestyle="",
        label="hollow: more ranks than cores",
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xticks(sorted({row["hops"] for row in rows}))
    axes.set_xlabel("pipeline hops (stages - 1)")
    axes.set_ylabel("step of the agreement, median (µs)")
    axes.set_title("Cost of a step by topology")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


def _stall(axes: Any, rows: Sequence[Row]) -> None:
    followers = [row for row in rows if row["role"] != LEADER]
    last = followers[-1]["role"]
    subjects = list(dict.fromkeys(row["subject"] for row in followers))
    for place, subject in enumerate(subjects):
        of = sorted(
            (row["skew_us"], row["stall_median_us"], row["stall_p90_us"])
            for row in followers
            if row["subject"] == subject and row["role"] == last
        )
        skews, stalls, late = zip(*of, strict=True)
        colour = _COLOURS[place % len(_COLOURS)]
        axes.plot(skews, stalls, color=colour, marker=_MARKS[place % len(_MARKS)], label=subject)
        axes.fill_between(skews, stalls, late, color=colour, alpha=0.1, linewidth=0)
    step_us = followers[0]["step_us"]
    axes.axvline(step_us, color="#444444", linewidth=1, linestyle=":")
    axes.annotate(
        f"a step's own {step_us:,.0f} µs",
        (step_us, 1),
        xycoords=("data", "axes fraction"),
        xytext=(5, -12),
        textcoords="offset points",
        fontsize=9,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("skew: how much later a follower's transfer is ready (µs)")
    axes.set_ylabel("stall of a follower in a step (µs)")
    axes.set_title(f"Stall by skew: {followers[0]['topology']}, median, shaded up to p90")
    axes.legend(loc="upper left")
