"""What a surrounding job sets must not reach the sessions that tests start inside theirs."""

import pytest

from reports.github import VARIABLE
from testbed.runs import KEEP_VARIABLE


@pytest.fixture(autouse=True)
def _no_settings_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, KEEP_VARIABLE, "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
