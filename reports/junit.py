"""``junit.xml``: what continuous-integration pages read.

A *failure* is the subject's: the run was not as expected. An *error* is the testbed's, or that of
the machine or of a scenario that cannot be run; it says nothing of the subject.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from reports.failure import headline, report
from reports.results import Row

JUNIT_FILE = "junit.xml"

# What XML 1.0 cannot hold at all, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Test(NamedTuple):
    """One entry. suite, name: as the page shows them. message: one line. text: all of it."""

    suite: str
    name: str
    seconds: float
    outcome: Literal["passed", "failure", "error", "skipped"] = "passed"
    kind: str = ""
    message: str = ""
    text: str = ""


def of_row(row: Row) -> Test:
    """A run as an entry: verdict and first divergence are in the message."""
    test = Test(row["scenario"], row["id"], row["wall_ms"] / 1000)
    if row["as_expected"]:
        return test
    outcome: Literal["failure", "error"] = "error" if row["verdict"] == "error" else "failure"
    return test._replace(
        outcome=outcome, kind=row["verdict"], message=headline(row), text=report(row)
    )


def write_junit(tests: Sequence[Test], path: Path) -> None:
    """Write the file. Raises OSError."""
    outcomes = [test.outcome for test in tests]
    counts = {
        "tests": str(len(tests)),
        "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("skipped")),
        "time": f"{sum(test.seconds for test in tests):.3f}",
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "testbed", **counts})
    for test in tests:
        _add(suite, test)
    ElementTree.indent(suites, " ")
    path.write_bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))


def _add(suite: ElementTree.Element, test: Test) -> None:
    about = {
        "classname": _clean(test.suite),
        "name": _clean(test.name),
        "time": f"{test.seconds:.3f}",
    }
    case = ElementTree.SubElement(suite, "testcase", about)
    if test.outcome == "passed":
        return
    why = {"message": _clean(test.message)}
    if test.kind:
        why["type"] = test.kind
    ElementTree.SubElement(case, test.outcome, why).text = _clean(test.text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("�", text)
