"""What a harness is to this benchmark, and what a case came to in it."""

import re
from dataclasses import dataclass
from typing import Protocol

from testbed.measure.harness.case import VICTIM, Kind

_NAMES_VICTIM = re.compile(rf"\b(?:rank|process)\W{{0,12}}{VICTIM}\b", re.IGNORECASE)
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b")
_TOLD_LIMIT = 110


@dataclass(frozen=True)
class Ended:
    """One case. ms: wall time to the verdict, None if there was none within the patience. told:
    what the harness said, a line. passed: it counted as passed. names_victim: what it said names
    the rank that was at fault."""

    ms: float | None
    told: str
    passed: bool
    names_victim: bool


def ended(ms: float, said: str, *, passed: bool) -> Ended:
    """From all that the harness said: its first error is what people read first."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = next((line for line in lines if _ERROR.match(line)), lines[0] if lines else "")
    names = not passed and _NAMES_VICTIM.search(said) is not None
    return Ended(ms, "passed" if passed else told[:_TOLD_LIMIT], passed, names)


NO_VERDICT = Ended(None, "no verdict within the patience", passed=False, names_victim=False)
NOT_RUN = Ended(None, "not run: the harness was still in the case before", False, False)


class Contender(Protocol):
    """A harness. isolates: a case gets fresh processes."""

    name: str
    isolates: bool

    def null_ms(self, count: int) -> list[float]:
        """Wall time of that many null cases, without what comes once at the start. Raises
        EnvironmentFault if one fails."""

    def fault(self, kind: Kind, patience_s: float) -> tuple[Ended, Ended]:
        """A faulty case, and the null case after it."""
