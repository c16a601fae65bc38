"""What the ranks' loop calls of the subject besides its check, as a scenario's ``calls`` say.

The model of a scheduler: it calls a thing in a step, or it goes through a list of requests and puts
to each a question that is put again in the next step until the answer is yes. The list is the same
on every rank; what a rank answers is its own.
"""

from collections.abc import Callable, Sequence

from testbed.model.events import Answer, Call
from testbed.model.scenario import Call as CallName
from testbed.model.scenario import CallSpec, select
from testbed.subjects import face
from testbed.workloads.base import Stage, Workload

QUESTIONS: frozenset[CallName] = frozenset({"prefetch-check", "load-back-poll"})


class LoopCalls:
    """The calls of one rank. Raises FaceError for one that the subject does not have."""

    def __init__(self, stage: Stage, workload: Workload) -> None:
        self._bench = stage.bench
        self._workload = workload
        self._answered: set[tuple[CallName, str]] = set()
        scenario = stage.bench.scenario
        self._mine: list[tuple[CallSpec, Callable[[str], object]]] = [
            (spec, face.called(stage.subject, spec.call))
            for spec in scenario.calls
            if stage.bench.rank in select(spec.on, scenario.topology)
        ]

    def make(self) -> None:
        """This step's calls, in the order of the list. Lets through whatever the subject raises."""
        step = self._bench.clock.step
        for spec, function in self._mine:
            if spec.from_step <= step and (spec.until_step is None or step < spec.until_step):
                for key in self._keys(spec):
                    self._make(spec.call, key, function)

    def _keys(self, spec: CallSpec) -> Sequence[str]:
        if spec.call not in QUESTIONS:
            return [""]
        return [
            key
            for key in self._workload.asked(spec.call)
            if (spec.only is None or key in spec.only) and (spec.call, key) not in self._answered
        ]

    def _make(self, call: CallName, key: str, function: Callable[[str], object]) -> None:
        self._bench.recorder.add(Call, call, key)
        yes = bool(function(key))
        told = ("yes" if yes else "no") if call in QUESTIONS else ""
        self._bench.recorder.add(Answer, call, key, told)
        if yes and call in QUESTIONS:
            self._answered.add((call, key))
