"""``junit.xml``: failures are the subject's, errors the testbed's."""

from pathlib import Path
from xml.etree import ElementTree

from reports.junit import Test as Entry
from reports.junit import of_row, write_junit
from testbed.model.scenario import Expect
from testbed.model.verdict import Outcome, Verdict
from tests.test_reports import VIOLATION, result_row

OK = Verdict(Outcome.OK, "every oracle holds")
BROKEN = Verdict(Outcome.ERROR, "oracle safety failed: KeyError: 3")


def written(tmp_path: Path, *tests: Entry) -> ElementTree.Element:
    write_junit(tests, tmp_path / "junit.xml")
    return ElementTree.parse(tmp_path / "junit.xml").getroot()


def test_a_run_as_expected_passes_whatever_its_verdict(tmp_path: Path) -> None:
    expected = result_row(VIOLATION, Expect(Outcome.VIOLATION))
    root = written(tmp_path, of_row(result_row(OK)), of_row(expected))
    assert [list(case) for case in root.iter("testcase")] == [[], []]
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("2", "0", "0")


def test_a_failure_carries_verdict_and_first_divergence(tmp_path: Path) -> None:
    root = written(tmp_path, of_row(result_row(VIOLATION)))
    (failure,) = root.iter("failure")
    assert failure.get("type") == "violation"
    assert str(failure.get("message")).startswith("violation by agreement at step 1, rank 2, ")
    assert "diverged  step 1, write #0" in str(failure.text)
    assert "rank 2: completed nothing" in str(failure.text)


def test_what_the_testbed_failed_at_is_an_error_and_no_failure(tmp_path: Path) -> None:
    root = written(tmp_path, of_row(result_row(BROKEN)), of_row(result_row(VIOLATION)))
    (error,) = root.iter("error")
    assert error.get("type") == "error"
    assert str(error.get("message")).startswith("error of the testbed")
    assert (root.get("errors"), root.get("failures")) == ("1", "1")


def test_what_xml_cannot_hold_is_replaced(tmp_path: Path) -> None:
    entry = Entry("s", "n\x00", 0.5, "failure", "crash", "a <&> \x1b[31m", "b\x08 é 漢\n")
    (case,) = written(tmp_path, entry).iter("testcase")
    assert case.get("name") == "n�"
    assert case[0].get("message") == "a <&> �[31m"
    assert case[0].text == "b� é 漢\n"
