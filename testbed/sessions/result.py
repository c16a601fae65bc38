"""One judged run, and how it differs from what its scenario expects. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from testbed.model.record import RunRecord
from testbed.model.scenario import Expect, Scenario
from testbed.model.verdict import Verdict
from testbed.oracles import judge

LOST = "not-kept"
"""The path of a run whose record could not be kept."""


@dataclass(frozen=True)
class RunResult:
    """One judged run. path: folder of the record. expected: the expectation that applied.
    why_not: what differs from it, in one line; empty where the run was as expected. lost: why the
    record could not be kept (a full disk); the verdict was then reached from memory."""

    scenario: Scenario
    record: RunRecord
    verdict: Verdict
    path: Path
    expected: Expect
    why_not: str
    lost: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether the run ended as its scenario says."""
        return not self.why_not


def judged(run_record: RunRecord, path: Path) -> RunResult:
    """Judge a record that lies in ``path`` against what its scenario expects. Writes nothing."""
    verdict = judge(run_record)
    expected = run_record.scenario.expected
    return RunResult(
        scenario=run_record.scenario,
        record=run_record,
        verdict=verdict,
        path=path,
        expected=expected,
        why_not=difference(expected, verdict),
    )


def difference(expected: Expect, verdict: Verdict) -> str:
    """In one line how a verdict differs from the expectation; empty where it does not.

    Oracle, step and ranks count only where the expectation names them; ranks in any order.
    """
    wrong = [
        f"{what} {'none' if got is None else got}"
        for what, wanted, got in (
            ("verdict", expected.verdict, verdict.outcome),
            ("oracle", expected.oracle, verdict.oracle),
            ("step", expected.step, verdict.step),
            ("ranks", _ranks(expected.ranks), _ranks(verdict.ranks)),
        )
        if wanted is not None and wanted != got
    ]
    return f"expected {told(expected)}, got {', '.join(wrong)}" if wrong else ""


def told(expected: Expect) -> str:
    """``violation by agreement at step 1 on ranks 2,3``."""
    words = [str(expected.verdict)]
    if expected.oracle is not None:
        words.append(f"by {expected.oracle}")
    if expected.step is not None:
        words.append(f"at step {expected.step}")
    if expected.ranks is not None:
        words.append(f"on ranks {_ranks(expected.ranks)}")
    return " ".join(words)


def _ranks(ranks: list[int] | tuple[int, ...] | None) -> str | None:
    return None if ranks is None else ",".join(map(str, sorted(ranks))) or "none"
