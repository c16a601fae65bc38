"""``results.json``: its schema, and files of older formats."""

from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from reports import results
from reports.results import FORMAT, document, load_document, schema, write_json
from testbed.model.errors import BadInput
from testbed.model.verdict import Outcome, Verdict
from tests.recorded import DATA, deadlock
from tests.test_reports import VIOLATION, result_row

SCHEMA_FILE = Path(results.__file__).with_name("results.schema.json")


def written() -> dict[str, Any]:
    rows = [result_row(VIOLATION), result_row(Verdict(Outcome.OK, "")), results.row(deadlock())]
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document(rows, 4, "out")))
    return data


def test_the_schema_in_the_repository_is_the_one_of_the_code() -> None:
    assert msgspec.json.decode(SCHEMA_FILE.read_bytes()) == schema(), (
        "write it again: python -m reports.results > reports/results.schema.json"
    )


def test_what_is_written_fits_the_schema() -> None:
    jsonschema.validate(written(), msgspec.json.decode(SCHEMA_FILE.read_bytes()))


@pytest.mark.parametrize("key", ["format", "runs", "world"])
def test_the_schema_refuses_a_document_that_lacks_something(key: str) -> None:
    data = written()
    del data[key]
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.validate(data, schema())


def test_a_file_of_format_1_still_loads() -> None:
    raw = msgspec.json.decode((DATA / "results-1.json").read_bytes())
    assert raw["format"] == 1
    loaded = load_document(DATA / "results-1.json")
    assert loaded["format"] == FORMAT
    assert [run["verdict"] for run in loaded["runs"]] == ["hang", "deadlock"]
    assert {run["operation"] for run in loaded["runs"]} == {""}
    jsonschema.validate(loaded, schema())


def test_a_file_of_this_format_loads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(written(), str(path))
    assert load_document(path)["runs"] == msgspec.json.decode(path.read_bytes())["runs"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"format": 99, "runs": []}', "results format 99, this testbed reads 1 to "),
        ('{"runs": []}', "results format None"),
        ("[]", "is no results file"),
        ("{", "is no results file"),
        ('{"format": 1, "runs": [{"id": 3}]}', "is no results file"),
        ('{"format": 1, "runs": [3]}', "is no results file"),
        ('{"format": 1, "runs": 3}', "is no results file"),
        ('{"format": [1]}', "results format [1]"),
    ],
)
def test_any_other_file_is_refused_in_one_line(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(BadInput) as refused:
        load_document(path)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_absent_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        load_document(tmp_path / "absent")
