"""The Scenario: one case, as data that can be mailed. Load, validate, select, save. Pure.

A scenario file holds one JSON object. Unknown keys are refused by name. Workloads and faults are
kept as plain objects here; ``workloads.parse`` and ``faults.parse`` own their keys.
"""

import re
from collections.abc import Iterable
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from testbed.errors import BadInput
from testbed.topology import Topology
from testbed.verdict import Outcome

MAX_STEPS = 100_000
MAX_SEED = (1 << 63) - 1
MAX_DEADLINE_MS = 600_000

Where = Literal["leader", "followers", "all"] | dict[str, int | list[int]]
"""Which ranks: a role, or any of pp, tp, cp, rank with a number or a list of them."""


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape of every rank's cache. Pages are ``page_tokens`` tokens; pools are counted in pages."""

    page_tokens: int = 16
    layers: int = 4
    heads: int = 4
    head_dim: int = 2
    device_pages: int = 64
    host_pages: int = 128


class Sidecar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An extra host pool (SWA, Mamba, an indexer) with a release queue of its own."""

    name: str
    on: Where = "all"


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run must end in, and why.

    ``subject`` (a glob or several) and pp, tp, cp (sizes) narrow where it applies. deadline_ms:
    where it applies, instead of the scenario's: a hang that is expected need not be waited for
    long.
    """

    verdict: Outcome
    oracle: str | None = None
    step: int | None = None
    ranks: list[int] | None = None
    why: str = ""
    deadline_ms: int | None = None
    subject: str | list[str] | None = None
    pp: list[int] | None = None
    tp: list[int] | None = None
    cp: list[int] | None = None

    def applies(self, subject: str, topology: Topology) -> bool:
        """Whether this expectation speaks of that subject at that topology."""
        globs = [self.subject] if isinstance(self.subject, str) else self.subject
        if globs is not None and not any(fnmatchcase(subject, glob) for glob in globs):
            return False
        axes = ((self.pp, topology.pp), (self.tp, topology.tp), (self.cp, topology.cp))
        return all(allowed is None or size in allowed for allowed, size in axes)


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case.

    steps: scheduler steps. workload / faults: plain objects, see ``workloads`` and ``faults``.
    traffic: the ranks also carry a model's traffic, see ``workloads.traffic``. backend: what that
    traffic goes over; nccl needs a GPU per rank, and carries it whether ``traffic`` says so or not.
    device: where the pools and the events are; on cuda ranks may share a GPU. agree_on: what the
    agreement goes over; nccl takes tensors on the GPU and groups that know no tags.
    claims: promises held against the subject besides its own: ``"budget:<protocol>"``,
    ``"stage-local"``. progress_within: steps within which work that is ready must be completed.
    deadline_ms: wall time without any progress of any rank, before it is a hang.
    expect: one expectation or several, the first that applies counts; none means ``ok``.
    """

    name: str
    topology: Topology
    workload: dict[str, Any]
    comment: str = ""
    subject: str = "batched"
    steps: int = 8
    seed: int = 0
    storage: bool = False
    traffic: bool = False
    sidecars: list[Sidecar] = []
    sizes: Sizes = Sizes()
    faults: list[dict[str, Any]] = []
    claims: list[str] = []
    progress_within: int = 2
    deadline_ms: int = 10_000
    backend: Literal["gloo", "nccl"] = "gloo"
    device: Literal["cpu", "cuda"] = "cpu"
    agree_on: Literal["gloo", "nccl"] = "gloo"
    expect: Expect | list[Expect] = []

    def __post_init__(self) -> None:
        if not self.name or any(char in self.name for char in "/\\ \t\n"):
            raise ValueError(f"name is {self.name!r}: give a word without blanks or slashes")
        _within("steps", self.steps, 1, MAX_STEPS)
        _within("deadline_ms", self.deadline_ms, 1, MAX_DEADLINE_MS)
        _within("seed", self.seed, 0, MAX_SEED)
        names = [pool.name for pool in self.sidecars]
        if len(set(names)) < len(names):
            raise ValueError(f"sidecars are {', '.join(names)}: give each a name of its own")
        if self.agree_on == "nccl" and self.backend != "nccl":
            raise ValueError(f"agree_on is nccl, backend is {self.backend}: make backend nccl too")
        _within("progress_within", self.progress_within, 1, MAX_STEPS)
        for key in self.sizes.__struct_fields__:
            _within(f"sizes.{key}", getattr(self.sizes, key), 1, 1 << 20)

    @property
    def case_id(self) -> str:
        """Readable and selectable: ``<name>-<subject>-<topology>``."""
        return f"{self.name}-{self.subject}-{self.topology}"

    @property
    def carries_traffic(self) -> bool:
        """Whether the ranks carry a model's traffic."""
        return self.traffic or self.backend == "nccl"

    @property
    def needs_gpu(self) -> bool:
        """Whether its ranks work on a GPU."""
        return self.device == "cuda" or self.backend == "nccl"

    @property
    def expected(self) -> Expect:
        """The first expectation that applies; a clean run where none is stated."""
        stated = self.expect if isinstance(self.expect, list) else [self.expect]
        for expect in stated:
            if expect.applies(self.subject, self.topology):
                return expect
        return Expect(Outcome.OK)

    @property
    def patience_ms(self) -> int:
        """Wall time without any progress before this run is a hang."""
        stated = self.expected.deadline_ms
        return self.deadline_ms if stated is None else stated

    def but(self, **changes: Any) -> "Scenario":
        """A copy with some fields replaced. Raises BadInput where a value is refused."""
        try:
            return msgspec.structs.replace(self, **changes)
        except ValueError as error:
            raise BadInput(f"scenario {self.name}: {error}") from error


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}: give a whole number from {low} to {high}")


def select(where: Where, topology: Topology) -> frozenset[int]:
    """Global ranks that ``where`` names (perhaps none). Raises BadInput on an unknown key."""
    ranks = range(topology.size)
    if where == "all":
        return frozenset(ranks)
    if where == "leader":
        return frozenset(topology.leaders)
    if where == "followers":
        return frozenset(ranks) - frozenset(topology.leaders)
    if not isinstance(where, dict) or not where:
        raise BadInput(
            f"'on' is {where!r}: give leader, followers, all, or any of pp, tp, cp, rank"
        )
    for key in where:
        if key not in ("pp", "tp", "cp", "rank"):
            raise BadInput(f"'on' has the unknown key {key!r}: give any of pp, tp, cp, rank")

    def matches(rank: int) -> bool:
        at = topology.coords(rank)._asdict() | {"rank": rank}
        return all(
            at[key] in (wanted if isinstance(wanted, list) else [wanted])
            for key, wanted in where.items()
        )

    return frozenset(rank for rank in ranks if matches(rank))


def from_object(data: Any, where: str) -> Scenario:
    """A decoded JSON object -> Scenario. Raises BadInput naming ``where`` and the key."""
    try:
        return msgspec.convert(data, Scenario)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {explained(error, Scenario)}") from error


def explained(error: msgspec.ValidationError, of: Any) -> str:
    """msgspec's line on reading the Struct ``of``, then the fields or values that would do."""
    told = str(error)
    path = re.findall(r"\w+", told.partition("at `$")[2])
    struct, field = of, ""
    for name in (step for step in path if not step.isdigit() and step != "..."):
        struct, field = _struct_in(get_type_hints(struct).get(name)) or struct, name
    if "unknown field" in told:
        return f"{told}: give any of {', '.join(struct.__struct_fields__)}"
    if "Invalid enum value" in told:
        return f"{told}: give one of {', '.join(_values(get_type_hints(struct).get(field)))}"
    return told


def _struct_in(hint: Any) -> Any:
    """The last Struct that a type hint names: lists of it and unions with it included."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = [struct for part in get_args(hint) if (struct := _struct_in(part)) is not None]
    return found[-1] if found else None


def _values(hint: Any) -> list[str]:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [str(member.value) for member in hint]
    return [str(value) for value in get_args(hint)]


def to_object(scenario: Scenario) -> dict[str, Any]:
    """Scenario -> plain JSON values; ``from_object`` reads them back to an equal scenario."""
    data: dict[str, Any] = msgspec.to_builtins(scenario)
    return data


def load(path: Path) -> Scenario:
    """Read one scenario file. Raises BadInput if it is absent, no JSON, or not a scenario."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    try:
        data = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadInput(f"{path}: is not JSON ({error})") from error
    return from_object(data, str(path))


def load_all(paths: Iterable[Path]) -> list[Scenario]:
    """Read many scenario files, in the order given. Raises BadInput at the first bad one."""
    return [load(path) for path in paths]
