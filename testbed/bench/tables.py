"""The benchmark's figures as tables, for a terminal and as Markdown.

Columns as in benchmarks of collectives: what, how much goes over the wire, then times in
microseconds, then ratios to what was measured beside it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from testbed.bench.stats import Spread
from testbed.bench.throughput import CLAIMED_TOKENS_PER_S, claimed_saving_us_per_token

Row = dict[str, Any]
Cells = list[list[str]]


@dataclass(frozen=True)
class Table:
    """title: what it shows. notes: what has to be known to read it. left: columns of words."""

    title: str
    heads: Sequence[str]
    cells: Cells
    left: int
    notes: Sequence[str] = ()

    def text(self, style: str) -> str:
        """As ``tabulate`` lays it out; style: ``simple`` or ``pipe``."""
        align = ["left"] * self.left + ["right"] * (len(self.heads) - self.left)
        laid: str = tabulate(self.cells, self.heads, style, colalign=align, disable_numparse=True)
        return laid


def all_of(document: Row) -> list[Table]:
    """The tables of whatever sections the document has."""
    makers: dict[str, Callable[[Any], Table]] = {
        "cost": cost,
        "overhead": overhead,
        "stall": stall,
        "throughput": throughput,
        "curve": curve,
        "scaling": scaling,
    }
    sections = document["sections"]
    return [make(sections[name]) for name, make in makers.items() if sections.get(name)]


def terminal(document: Row) -> str:
    """Everything, with the parameters as comment lines before it."""
    lines = [f"# {line}" for line in header(document)]
    for table in all_of(document):
        lines += ["", table.title, "", table.text("simple"), *_indented(table.notes)]
    return "\n".join(lines)


def markdown(document: Row, pictures: Sequence[str] = ()) -> str:
    """The same as Markdown. pictures: file names beside it."""
    lines = ["# What one agreement costs", "", *(f"- {line}" for line in header(document))]
    for table in all_of(document):
        lines += ["", f"## {table.title}", "", table.text("pipe")]
        lines += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    for picture in pictures:
        lines += ["", f"![{picture}]({picture})"]
    return "\n".join(lines) + "\n"


def header(document: Row) -> list[str]:
    """Machine, versions, command and parameters, a line each."""
    machine, parameters = document["machine"], document["parameters"]
    known = ", ".join(f"{key} {value}" for key, value in machine.items())
    lines = [
        f"{document['command']}",
        known,
        f"backend {parameters['backend']}, {parameters['topology']}, seed {parameters['seed']}, "
        f"storage {'on' if parameters['storage'] else 'off'}, one torch thread a rank, "
        "ranks ask for SCHED_BATCH",
        f"load average {document['load']['before']} before and {document['load']['after']} after, "
        f"{machine['cores']} cores"
        + ("" if document["load"]["calm"] else ": the machine was busy before, trust no figure"),
    ]
    return lines + [f"{name}: {value}" for name, value in parameters["plans"].items()]


def cost(rows: Sequence[Row]) -> Table:
    """The section ``cost``."""
    heads = ["topology", "subject", "way", "role", "ops", "sent", "recv", "coll", "bytes"]
    heads += ["median us", "p90", "p99", "cpu us", "x raw", "x plain", f"x {rows[0]['base']}"]
    counts = ("ops", "sent", "received", "collectives", "bytes")
    times = ("median_us", "p90_us", "p99_us", "cpu_us")
    cells = [
        [row["topology"], row["subject"], row["way"], row["role"]]
        + [f"{row[key]:.3g}" for key in counts]
        + [f"{row[key]:.0f}" for key in times]
        + [spread_cell(row[against]) for against in ("x_raw", "x_plain", "x_base")]
        for row in rows
    ]
    return Table(
        "Agreement cost of a step with nothing to complete",
        heads,
        cells,
        4,
        (
            "roles: leader stage, middle stages, last stage; all: over all ranks",
            "raw: the same collectives and messages in a bare loop; plain: the subject; recorded: "
            "the subject with the flight recorder beneath",
            "ops, messages sent and received, collectives, bytes handed to them: per step and rank",
            "median, p90, p99: us of a step",
            "x raw, x plain: this row against that way of the same subject and role; "
            f"x {rows[0]['base']}: against that one, the same way",
            "ratios: median of the rounds (quartiles), both sides measured in turn in one run",
            "cpu: processor time of a step in all threads of a rank",
        ),
    )


def overhead(rows: Sequence[Row]) -> Table:
    """The section ``overhead``."""
    said = {
        "recorder": "recorded against unrecorded step",
        "subject": "subject against its bare operations",
    }
    cells = [
        [
            said[row["what"]],
            row["subject"],
            row["topology"],
            spread_cell(row["times"]),
            "{:.2f}-{:.2f}".format(*row["times"]["bounds"]) if row["times"]["bounds"] else "",
            f"<= {row['target']:.2f}",
            row["met"],
            "oversubscribed" if row["oversubscribed"] else "",
        ]
        for row in rows
    ]
    heads = ["the testbed on the hot path", "subject", "topology", "times", "median in", "target"]
    heads += ["met", ""]
    notes = [
        "median in: where the median is at 95 % (order statistics; of six rounds or more)",
        "bare operations: of batched only, the protocol that the target is for",
        "met: what that says; open: more --rounds may tell",
    ]
    if any(row["oversubscribed"] for row in rows):
        notes.append(
            "oversubscribed: more ranks than cores, so that each also waits for the others' Python;"
            " the targets are for a core per rank"
        )
    return Table("Overhead of the testbed", heads, cells, 3, notes)


def stall(rows: Sequence[Row]) -> Table:
    """The section ``stall``."""
    heads = ["topology", "subject", "role", "skew us", "stall median us", "p90"]
    heads += ["check median us", "p90", f"x {rows[0]['base']}"]
    keys = ("skew_us", "stall_median_us", "stall_p90_us", "check_median_us", "check_p90_us")
    cells = [
        [
            row["topology"],
            row["subject"],
            row["role"],
            *(f"{row[key]:.0f}" for key in keys),
            spread_cell(row["x_base"]),
        ]
        for row in rows
    ]
    return Table(
        "Stall under skew",
        heads,
        cells,
        3,
        (
            f"one write a step, ready at once on the leader stage and later by the skew elsewhere; "
            f"a step takes {rows[0]['step_us']:.0f} us besides",
            "stall: time waiting for the transfer's own event; check: the whole check; "
            f"x {rows[0]['base']}: the check against that one's, in turn in one run",
        ),
    )


def throughput(rows: Sequence[Row]) -> Table:
    """The section ``throughput``."""
    heads = ["topology", "input", "subject", "tokens/s", "(quartiles)", "step us"]
    base = rows[0]["base"]
    heads += ["compute us", "check us", f"x {base}"]
    cells = [
        [
            row["topology"],
            f"{row['length']}",
            row["subject"],
            f"{row['tokens_per_s']['median']:,.0f}",
            f"{row['tokens_per_s']['low']:,.0f}-{row['tokens_per_s']['high']:,.0f}",
            f"{row['step_us']['median']:.0f}",
            f"{row['compute_us']:.0f}",
            f"{row['check_us']:.0f}",
            spread_cell(row["x_base"]),
        ]
        for row in rows
    ]
    return Table(
        "Throughput of prefill, one output token",
        heads,
        cells,
        3,
        (
            "measured: the agreement, and the pipeline of real messages from stage to stage",
            "modelled: compute (time is spent, nothing is calculated) and transfers between device "
            "and host (a latency and a bandwidth); compute us is what was really spent",
            "tokens: of the input, found prefixes included; per replica, not per rank",
            f"step, and of it compute and check: of a stage; x {base}: tokens/s against that one's",
        ),
    )


def curve(found: Row) -> Table:
    """The section ``curve``."""
    heads = ["compute us", f"{found['base']} step us", f"{found['better']} step us"]
    heads += ["gain", "(quartiles)", "model"]
    cells = [
        [
            f"{point['compute_us']:.0f}",
            f"{point['base_us']:.0f}",
            f"{point['better_us']:.0f}",
            f"{point['gain']['median']:+.1%}",
            f"{point['gain']['low']:+.1%} to {point['gain']['high']:+.1%}",
            f"{point['model_gain']:+.1%}",
        ]
        for point in found["points"]
    ]
    before, after = CLAIMED_TOKENS_PER_S
    return Table(
        f"What {found['better']} gains over {found['base']}, by compute per step "
        f"({found['topology']}, {found['length']} tokens)",
        heads,
        cells,
        0,
        (
            reached(found),
            "model: the step without compute, and the compute added to it",
            "where a gain is reached, and the most there is, is read off the closest curve that "
            "falls with compute: a point above it is noise",
            f"the claim ({before:,} to {after:,} tokens/s) says that an input token takes "
            f"{claimed_saving_us_per_token():.2f} us less, "
            f"{claimed_saving_us_per_token() * 8192:,.0f} us in a step of 8192",
        ),
    )


def reached(found: Row) -> str:
    """Where the curve has the claimed gain, in words."""
    best = found["at_most"]
    at = found["reached_at_us"]
    if at["median"] is not None:
        told = f"{found['target']:+.0%} at {at['median']:.0f} us of compute per step"
        if at["low"] is None or at["high"] is None:
            return told
        return f"{told} (quartiles: {at['low']:.0f} to {at['high']:.0f})"
    if best < found["target"]:
        return f"{found['target']:+.0%} is not reached: {best:+.1%} at most"
    return f"{found['target']:+.0%} is passed at every point: compute more per step"


def scaling(rows: Sequence[Row]) -> Table:
    """The section ``scaling``."""
    heads = ["topology", "subject", "way", "ranks", "hops", "group", "median us", "p90", "p99"]
    heads += ["x raw", ""]
    cells = [
        [
            row["topology"],
            row["subject"],
            row["way"],
            *(str(row[key]) for key in ("ranks", "hops", "group")),
            *(f"{row[key]:.0f}" for key in ("median_us", "p90_us", "p99_us")),
            spread_cell(row["x_raw"]),
            "oversubscribed" if row["oversubscribed"] else "",
        ]
        for row in rows
    ]
    return Table(
        "Cost by topology",
        heads,
        cells,
        3,
        (
            "over all ranks, us of a step; hops: stages behind the first; group: ranks of a stage; "
            "raw, plain and x raw as under cost",
            "oversubscribed: more ranks than cores, so that they also wait for each other's core",
        ),
    )


def spread_cell(of: Spread | None) -> str:
    """``1.12 (1.08-1.17)``; empty for none."""
    return f"{of['median']:.2f} ({of['low']:.2f}-{of['high']:.2f})" if of else ""


def _indented(notes: Iterable[str]) -> list[str]:
    told = [f"  {note}" for note in notes]
    return ["", *told] if told else []
