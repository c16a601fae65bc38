"""The report of a run that was not as expected: one screen between twice the same line, the command
that replays exactly this case.
"""

import textwrap
from collections.abc import Mapping

from reports.ranks import ranged
from reports.results import Row, divergence
from testbed.model.verdict import Divergence

_INDENT = 12
_WIDTH = 100
_NOTE_LIMIT = 170


def headline(row: Row) -> str:
    """Verdict, ranks, operation and group, often the only line that a page shows:

    ``violation by agreement at step 1, rank 2, after recv #1 of pp[tp0], expected ok: <summary>``.
    """
    words = [row["verdict"] if row["verdict"] != "error" else "error of the testbed"]
    if row["oracle"]:
        words.append(f"by {row['oracle']}")
    if row["step"] is not None:
        words.append(f"at step {row['step']}")
    parts = [" ".join(words)]
    if row["ranks"]:
        parts.append(ranged(row["ranks"]))
    if row["operation"]:
        parts.append(row["operation"])
    parts.append(f"expected {row['expectation'].split(':')[0]}")
    return f"{', '.join(parts)}: {row['summary']}"


def report(row: Row, outputs: Mapping[int, str] | None = None) -> str:
    """The whole report, several lines, no trailing newline. outputs: what ranks printed."""
    lines = [row["replay"], "", headline(row)]
    lines += [f"  {row['id']}, {row['steps']} steps, {row['wall_ms']:.0f} ms", ""]
    first = divergence(row)
    if first is not None:
        lines += _field("diverged", first.where())
        for side in first.sides():
            lines += _field("", side)
        if first.minority and first.majority:
            lines += _field("look at", _sides(first))
    elif row["ranks"]:
        lines += _field("ranks", ", ".join(map(str, row["ranks"])))
    lines += _field("expected", row["expectation"])
    if row["verdict"] == row["expected"]:  # then it differs in a detail the headline does not tell
        lines += _field("but", row["why_not"])
    for note in row["notes"]:
        lines += _field("also", _squeezed(note))
    for rank, text in (outputs or {}).items():
        lines += ["", f"  output of rank {rank}:", textwrap.indent(text, "    ")]
    return "\n".join([*lines, "", row["replay"]])


def _sides(first: Divergence) -> str:
    few, many = (
        f"rank{'s' * (len(side) > 1)} {', '.join(map(str, side))}"
        for side in (first.minority, first.majority)
    )
    if first.even:
        return f"{few} and {many}: {first.no_majority}"
    return f"{few}; the protocol went as on {many}"


def _squeezed(text: str) -> str:
    """Without its middle if it is long: errors of libraries begin and end with what counts."""
    if len(text) <= _NOTE_LIMIT:
        return text
    return f"{text[: _NOTE_LIMIT // 2].rstrip()} … {text[-_NOTE_LIMIT // 2 :].lstrip()}"


def _field(name: str, text: str) -> list[str]:
    first = f"  {name}".ljust(_INDENT)
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
