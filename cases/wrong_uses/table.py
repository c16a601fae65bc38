"""Measures who notices what, when, and writes it down as the page ``docs/wrong_uses.md``."""

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tabulate import tabulate

from cases.wrong_uses.bare import GLOO_TIMEOUT_S, LIMIT_S, RankEnd, run
from cases.wrong_uses.use import Use
from testbed.analysis.sides import named
from testbed.model.verdict import Verdict
from testbed.oracles import judge
from testbed.sessions.world import RunsCases

SILENT = "silent"
CLEAN = "clean"

_SOURCE_LINE = re.compile(r"^\w+: (\[\S+:\d+\] )?")
_ADDRESS = re.compile(r" \[127\.0\.0\.1\]:\d+")
_DIFFER = re.compile(r"differ in the following aspects:\s*(.*)")
_MISSING = re.compile(r"Ranks [\d, ]+ failed to pass monitoredBarrier")


@dataclass(frozen=True)
class Noticed:
    """One program, three ways. plain, detail: in words. verdict: the recorder's, after ms."""

    use: Use
    plain: str
    detail: str
    verdict: Verdict
    ms: float


def measure(uses: Sequence[Use], fleet: RunsCases) -> Iterator[Noticed]:
    """Run each program under plain gloo, under DETAIL, and under the recorder."""
    for use in uses:
        plain, detail = (told(use, run(use, detail=debug)) for debug in (False, True))
        record = fleet.run(use.scenario())
        yield Noticed(use, plain, detail, judge(record), record.wall_ms)


def told(use: Use, ends: Sequence[RankEnd]) -> str:
    """What one run without the recorder came to: whose fault it was said to be, and when."""
    if all(end.ended == "returned" for end in ends):
        wrong = [rank for rank, end in enumerate(ends) if _wrong(use, rank, end)]
        if use.first is None:
            return CLEAN
        numbers = f", wrong result on {named(wrong)}" if wrong else ""
        return f"{SILENT}{numbers}"
    died = [rank for rank, end in enumerate(ends) if end.ended == "died"]
    if died:
        return f"{named(died)} aborts ({signal.Signals(ends[died[0]].signal).name}) without a word"
    raised = [end for end in ends if end.ended == "raised" and "left with status" not in end.error]
    if not raised:
        return f"blocks; still there after {LIMIT_S:g} s"
    words = next((text for end in raised if (text := _named(end.error))), "")
    when = "at once" if not all(end.late for end in raised) else "at gloo's timeout"
    if words:
        return f"{when}: {words}"
    said = _SOURCE_LINE.sub("", raised[0].error).split(". ")[0]
    return f"{when}, names no cause: {_ADDRESS.sub('', said)}"


def _wrong(use: Use, rank: int, end: RankEnd) -> bool:
    return rank in use.right and end.result != use.right[rank]


def _named(error: str) -> str:
    """The cause, if the message names one: a mismatch, or the rank that is missing."""
    differ = _DIFFER.search(error)
    if differ:
        aspects = differ[1].split(":")[0].lower().split()
        return "mismatch of " + " ".join(dict.fromkeys(aspects))
    missing = _MISSING.search(error)
    return missing[0] if missing else ""


def page(wrong: Sequence[Noticed], correct: Sequence[Noticed]) -> str:
    """The whole page, as Markdown."""
    unseen = [one for one in wrong if _silent(one.plain) and _silent(one.detail)]
    seen = [one for one in wrong if one.verdict.first_divergence is not None]
    alarms = [one for one in correct if one.detail != CLEAN]
    clean = [one for one in correct if str(one.verdict.outcome) == "ok"]
    return f"""# Wrong uses of torch.distributed: who notices what, and when

Made by `python -m cases.wrong_uses` with torch {torch.__version__} on gloo: measured by running,
not from memory. The programs are in `cases/wrong_uses/`. gloo's timeout was {GLOO_TIMEOUT_S:g} s
here; it is 30 minutes by default. DETAIL is `TORCH_DISTRIBUTED_DEBUG=DETAIL`. The recorder's column
gives the verdict of the testbed and the first divergence it names, and the time of the whole case,
ranks forked and groups built; two ranks are no majority, there the second is listed as the odd one.

Of {len(wrong)} misuses, {len(unseen)} are silent under plain gloo and under DETAIL. The recorder
names the first divergence of {len(seen)}. Of {len(correct)} correct programs DETAIL reports
{len(alarms)}, and the recorder is clean on {len(clean)}.

## Misuses

{_table(("misuse", "plain gloo", "DETAIL", "recorder", "ms"), [_row(one) for one in wrong])}

What the recorder cannot prove while it runs, it tells at the scenario's deadline: ranks that are
in operations which do not match (gloo may yet return from them), and a rank that stands in no
operation at all. A write into a buffer being sent shows when its `wait()` comes. Use of a buffer
through numpy, through a raw pointer, or through a view made before the operation began is not seen;
nor is a call of a function that was imported from `torch.distributed` by name before the recorder
was installed.

## Correct programs that look like them

{_table(("program", "plain gloo", "DETAIL", "recorder", "ms"), [_row(one) for one in correct])}
"""


def _silent(cell: str) -> bool:
    return cell.startswith(SILENT)


def _row(one: Noticed) -> list[str]:
    first = one.verdict.first_divergence
    verdict = str(one.verdict.outcome) + (f": {one.verdict.oracle}" if one.verdict.oracle else "")
    recorder = f"{verdict}; {first.one_line()}" if first else CLEAN
    cells = [one.use.what, one.plain, one.detail, recorder, f"{one.ms:.0f}"]
    return [cell.replace("|", "\\|") for cell in cells]


def _table(headers: Sequence[str], rows: list[list[str]]) -> str:
    text: str = tabulate(rows, headers, "pipe", disable_numparse=True)
    return text
