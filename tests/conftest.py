"""What a surrounding job sets must not reach the sessions that tests start inside theirs."""

import pytest

from reports.github import VARIABLE
from testbed.recorder.recorder import ListRecorder
from testbed.scripted_events import Clock
from testbed.sessions.store import KEEP_VARIABLE


@pytest.fixture(autouse=True)
def _no_settings_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, KEEP_VARIABLE, "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock() -> Clock:
    """A rank's clock in its first step."""
    clock = Clock()
    clock.tick()
    return clock


@pytest.fixture
def recorder(clock: Clock) -> ListRecorder:
    """A recorder that keeps its events in a list."""
    return ListRecorder(clock)
