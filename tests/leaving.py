"""A sound subject whose ranks leave processes behind, for tests: ``tests.leaving:<name>``.

Each process writes its id into the folder that ``TESTBED_TEST_LEFT`` names and would then stay for
an hour, deaf to SIGTERM and SIGHUP.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from testbed import protocols
from testbed.subjects.minimal import MinimalSubject

FOLDER_ENV = "TESTBED_TEST_LEFT"


def plain_child(*rank: Any) -> MinimalSubject:
    """It stays in the rank's process group."""
    _leave(session=False)
    return _sound(*rank)


def daemon(*rank: Any) -> MinimalSubject:
    """It has a session of its own, and lost its parent at once; its child too."""
    if os.fork() == 0:
        os.setsid()
        _leave(session=False)
        _leave(session=True)
        os._exit(0)
    os.wait()
    return _sound(*rank)


def brief_child(*rank: Any) -> MinimalSubject:
    """It ends by itself as soon as the rank has gone: a helper, as libraries have them."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    return _sound(*rank)


def stopped_child(*rank: Any) -> MinimalSubject:
    """It stands still."""
    os.kill(_leave(session=False), signal.SIGSTOP)
    return _sound(*rank)


def straying_child(*rank: Any) -> MinimalSubject:
    """It goes on in the rank's own loop and raises there, before its rank has gone on."""
    if os.fork() == 0:
        raise SystemExit(0)
    os.wait()
    return _sound(*rank)


def _leave(*, session: bool) -> int:
    came, comes = os.pipe()
    pid = os.fork()
    if pid == 0:
        if session:
            os.setsid()
        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        Path(os.environ[FOLDER_ENV], str(os.getpid())).touch()
        os.write(comes, b"x")
        while True:
            time.sleep(3600)
    os.read(came, 1)
    return pid


def _sound(cache: Any, controller: Any, groups: Any, scenario: Any) -> MinimalSubject:
    protocol = protocols.make("batched", groups)
    return MinimalSubject(cache, controller, protocol, scenario.storage, ())
