"""A rank's clock, and events whose readiness is scripted: fake ones here, real ones in ``device``.

The model. A clock counts the rank's own scheduler steps; nothing reads wall time unless a script is
given in milliseconds. An event scripted in steps is ready from a step on. Told to ``synchronize()``
earlier, it cannot wait for a step which that very wait holds up: it records how many steps early it
was asked (the *stall*) and completes, as real time would have made it. In milliseconds it truly
blocks; one that never fires truly hangs; a sick device raises what CUDA raises.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from testbed.model.errors import BadInput, brief
from testbed.model.events import Query, Sync, Synced
from testbed.recorder.recorder import HasStep, Recorder

_FOREVER_S = 3600.0


class Clock:
    """Counts scheduler steps; -1 before the first."""

    def __init__(self) -> None:
        self.step = -1

    def tick(self) -> None:
        """The next step begins."""
        self.step += 1


Kind = Literal["steps", "ms", "never", "error"]


@dataclass(frozen=True)
class Readiness:
    """When an event becomes ready, counted from the moment it is recorded.

    kind: steps (``after`` scheduler steps), ms (``after`` milliseconds), never, or error
    (``message`` is what the device says).
    """

    kind: Kind
    after: float = 0
    message: str = ""

    @classmethod
    def steps(cls, count: int) -> "Readiness":
        """Ready ``count`` steps later; 0 is at once."""
        return cls("steps", count)

    @classmethod
    def ms(cls, duration: float) -> "Readiness":
        """Ready ``duration`` milliseconds of wall time later."""
        return cls("ms", duration)

    @classmethod
    def never(cls) -> "Readiness":
        """Never ready; waiting for it hangs."""
        return cls("never")

    @classmethod
    def error(cls, message: str) -> "Readiness":
        """Asking it raises ``RuntimeError("CUDA error: <message>")``."""
        return cls("error", message=message)

    @classmethod
    def parse(cls, value: Any, where: str) -> "Readiness":
        """As scenarios write it: 3, null, {"ms": 5} or {"error": "text"}. Raises BadInput naming
        ``where``."""
        if value is None:
            return cls.never()
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls.steps(value)
        if isinstance(value, dict) and len(value) == 1:
            ((key, given),) = value.items()
            if key == "ms" and _is_duration(given):
                return cls.ms(given)
            if key == "error" and isinstance(given, str) and given:
                return cls.error(given)
        raise BadInput(
            f"{where} is {brief(value)}: "
            'give steps from 0 on, null (never), {"ms": n} or {"error": "text"}'
        )

    def times(self, count: int) -> "Readiness":
        """``count`` times as late: of the last one where ``count`` things follow each other."""
        return replace(self, after=self.after * count)

    def delayed(self, steps: int) -> "Readiness":
        """``steps`` later (earlier if negative, at once at the soonest). Only steps can be shifted:
        any other kind comes back unchanged."""
        if self.kind != "steps":
            return self
        return replace(self, after=max(0, self.after + steps))


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


class ScriptedEvent(ABC):
    """The event at the end of a transfer, with the face of ``torch.cuda.Event``.

    The script says from which step on it may be seen ready; what stands behind the event says when
    its work is really over. key: the transfer's, as recorded. on_complete: called once, when the
    event is first seen complete. Like a CUDA event, one never recorded counts as ready.
    """

    def __init__(
        self,
        clock: HasStep,
        recorder: Recorder,
        key: str,
        readiness: Readiness,
    ) -> None:
        self.key = key
        self.readiness = readiness
        self._clock = clock
        self._recorder = recorder
        self.on_complete: Callable[[], None] | None = None
        self._recorded_step: int | None = None
        self._synchronized = False

    @abstractmethod
    def _is_over(self) -> bool:
        """Whether the work before the event is over, the script apart."""

    @abstractmethod
    def _await(self) -> None:
        """Block until it is."""

    @abstractmethod
    def wait(self, stream: Any = None) -> None:
        """Order a stream behind this event; the host does not wait."""

    @abstractmethod
    def elapsed_time(self, other: Any) -> float:
        """Milliseconds from this event to another of its kind. Raises RuntimeError unless both are
        complete.
        """

    def record(self, stream: Any = None) -> None:
        """The transfer is enqueued: its readiness counts from now."""
        self._recorded_step = self._clock.step

    @property
    def script(self) -> str:
        """``steps:<absolute step>``, ``ms:<n>``, ``never`` or ``error``."""
        if self.readiness.kind == "steps":
            return f"steps:{self._due_step()}"
        return (
            f"ms:{self.readiness.after:g}" if self.readiness.kind == "ms" else self.readiness.kind
        )

    @property
    def observed(self) -> bool:
        """Ready, or already waited for: its transfer may be completed."""
        return self._synchronized or self.peek()

    def peek(self) -> bool:
        """Whether it is ready, asked silently. A sick device is never ready."""
        if self._recorded_step is None or self._synchronized:
            return True
        if self.readiness.kind == "steps":
            return self._is_due() and self._is_over()
        return self.readiness.kind == "ms" and self._is_over()

    def poll(self) -> bool:
        """``peek()``, and if it is ready its transfer's bytes move, as on a device."""
        ready = self.peek()
        if ready:
            self._complete()
        return ready

    def query(self) -> bool:
        """Whether it is ready. Records Query. Raises RuntimeError on a sick device."""
        ready = self.poll()
        self._recorder.add(Query, self.key, ready)
        self._raise_if_sick()
        return ready

    def synchronize(self) -> None:
        """Wait until ready. Records Sync, then Synced. Raises RuntimeError on a sick device."""
        self._recorder.add(Sync, self.key, self._stall())
        self._raise_if_sick()
        if self.readiness.kind == "never" and self._recorded_step is not None:
            block_for_ever()
        self._await()
        self._synchronized = True
        self._complete()
        self._recorder.add(Synced, self.key)

    def check_complete(self) -> None:
        """Raise RuntimeError, as CUDA does, if a time is asked of it and there is none yet."""
        if self._recorded_step is None or not self.observed:
            raise RuntimeError(f"event {self.key!r}: elapsed_time() needs both events complete")

    def _due_step(self) -> int:
        return (self._recorded_step or 0) + int(self.readiness.after)

    def _is_due(self) -> bool:
        return self._clock.step >= self._due_step()

    def _stall(self) -> int:
        if self.peek():
            return 0
        if self.readiness.kind == "steps" and not self._is_due():
            return self._due_step() - self._clock.step
        return -1

    def _raise_if_sick(self) -> None:
        if self.readiness.kind == "error" and self._recorded_step is not None:
            raise RuntimeError(f"CUDA error: {self.readiness.message}")

    def _complete(self) -> None:
        done, self.on_complete = self.on_complete, None
        if done is not None:
            done()


class FakeEvent(ScriptedEvent):
    """Stands for a CUDA event where there is no GPU: nothing is behind it but its script.

    ``on_complete`` is what moves the transfer's bytes.
    """

    def __init__(self, clock: HasStep, recorder: Recorder, key: str, readiness: Readiness) -> None:
        super().__init__(clock, recorder, key, readiness)
        self._recorded_s = 0.0

    def record(self, stream: Any = None) -> None:
        """The transfer is enqueued: its readiness counts from now. ``stream`` is ignored."""
        super().record(stream)
        self._recorded_s = time.monotonic()

    def wait(self, stream: Any = None) -> None:
        """Nothing to do on a CPU: there is no stream."""

    def elapsed_time(self, other: "FakeEvent") -> float:
        """Milliseconds from this event to ``other``, one step counting as one millisecond.

        Raises RuntimeError if either was not recorded or is not complete, as CUDA does.
        """
        return other._finish_ms() - self._finish_ms()

    def _is_over(self) -> bool:
        return self._left_s() <= 0

    def _await(self) -> None:
        # Not even for no time at all: a sleep gives the core away.
        if (left_s := self._left_s()) > 0:
            time.sleep(left_s)

    def _finish_ms(self) -> float:
        self.check_complete()
        return (self._recorded_step or 0) + self.readiness.after

    def _left_s(self) -> float:
        if self._recorded_step is None or self.readiness.kind != "ms":
            return 0.0
        return self._recorded_s + self.readiness.after / 1000 - time.monotonic()


def block_for_ever() -> NoReturn:
    """What a wait for something that never comes does. Signals still end the process."""
    never = threading.Event()
    while True:
        never.wait(_FOREVER_S)
