"""Spending a given time: asleep, or keeping the core busy."""

import ctypes
import time

_PR_SET_TIMERSLACK = 29


def sharpen_sleep() -> None:
    """Have the kernel wake this process when it asked for, not up to 50 µs later."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def sleep_us(duration_us: float) -> None:
    """Give the core away for that long; the kernel's own delay comes on top."""
    if duration_us > 0:
        time.sleep(duration_us / 1e6)


def burn_us(duration_us: float) -> None:
    """Keep the core busy for that long."""
    until_ns = time.perf_counter_ns() + duration_us * 1e3
    while time.perf_counter_ns() < until_ns:
        pass
