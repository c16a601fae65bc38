"""What is run: a program, its arguments, whether it is recorded and how it is broken. Pure data.

A program is a function, named ``package.module:function``, that takes keyword arguments and
returns what JSON can hold. It travels as a Scenario of one step, so that its record is kept, judged
and explained like any other.
"""

from typing import Any, Literal

import msgspec

from testbed.model.errors import BadInput, brief
from testbed.model.scenario import Scenario
from testbed.model.topology import Topology

KIND = "program"

How = Literal["skip", "swap", "dtype"]


class Break(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of one rank that is damaged, above the recorder: as if the program had made it so.

    how: ``skip`` (not made; who asked for a Work gets a finished one), ``swap`` (made after the
    next call that matches), ``dtype`` (its tensors are taken for others of the same size).
    op: the operation, by the name it is recorded by. nth: which of the rank's matching calls,
    from 0 on.
    """

    how: How
    rank: int
    op: str
    nth: int = 0

    def __str__(self) -> str:
        return f"{self.how}:rank={self.rank},op={self.op},n={self.nth}"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``workload`` of a program's scenario."""

    kind: Literal["program"] = "program"
    args: dict[str, Any] = {}
    recorded: bool = True
    breaks: list[Break] = []


def scenario_of(
    program: str,
    ranks: int,
    plan: Plan,
    *,
    name: str = "",
    deadline_ms: int = 10_000,
) -> Scenario:
    """The scenario that runs it. name: of the case; by default the function's."""
    _, _, function = program.partition(":")
    return Scenario(
        name=name or function.replace("_", "-"),
        topology=Topology(tp=ranks),
        workload=msgspec.to_builtins(plan),
        subject=program,
        steps=1,
        deadline_ms=deadline_ms,
    )


def plan_of(scenario: Scenario) -> Plan:
    """What a program's scenario says. Raises BadInput if it is none."""
    try:
        return msgspec.convert(scenario.workload, Plan)
    except msgspec.ValidationError as error:
        raise BadInput(f"workload: no program's ({error})") from error


def parts_of(program: str) -> tuple[str, str]:
    """Its module and function. Raises BadInput if it is no program's name."""
    module, _, function = program.partition(":")
    if not module or not function.isidentifier():
        raise BadInput(f"program {brief(program)}: give package.module:function")
    return module, function
