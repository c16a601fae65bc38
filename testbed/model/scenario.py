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

from testbed.model.errors import BadInput, brief, shortened
from testbed.model.topology import Topology
from testbed.model.verdict import Outcome

MAX_STEPS = 100_000
MAX_SEED = (1 << 63) - 1
MAX_DEADLINE_MS = 600_000
MAX_NUMBER = (1 << 31) - 1
"""Of any other number in a scenario file, above and below zero."""
MAX_NESTED = 12
"""Objects and lists inside one another in a workload or a fault."""
MAX_POOL_VALUES = 1 << 28
"""int32 values of one pool of all ranks together: 1 GiB."""

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

    def __post_init__(self) -> None:
        _check_word("name", self.name)
        check_plain("on", self.on)


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

    def __post_init__(self) -> None:
        for key in ("step", "ranks", "pp", "tp", "cp"):
            check_plain(key, getattr(self, key))
        if self.deadline_ms is not None:
            _within("deadline_ms", self.deadline_ms, 1, MAX_DEADLINE_MS)

    def applies(self, subject: str, topology: Topology) -> bool:
        """Whether this expectation speaks of that subject at that topology."""
        globs = [self.subject] if isinstance(self.subject, str) else self.subject
        if globs is not None and not any(fnmatchcase(subject, glob) for glob in globs):
            return False
        axes = ((self.pp, topology.pp), (self.tp, topology.tp), (self.cp, topology.cp))
        return all(allowed is None or size in allowed for allowed, size in axes)


Call = Literal["flush", "write-back", "storage-drain", "prefetch-check", "load-back-poll"]


class CallSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the ranks' loop calls of the subject besides its check, after it, in each step from
    ``from_step`` to before ``until_step`` (null: to the end).

    call: ``flush``; ``write-back`` (the write check that waits); ``storage-drain``;
    ``prefetch-check`` (for each request that waits for its prefetch, until the answer is yes);
    ``load-back-poll`` (for each load, likewise). only: keys of the requests or loads it is about.
    """

    call: Call
    from_step: int = 0
    until_step: int | None = None
    on: Where = "all"
    only: list[str] | None = None


class PrefetchStop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a prefetch check stops a prefetch. timeout_steps: of the policy ``timeout``."""

    policy: Literal["best_effort", "wait_complete", "timeout"] = "best_effort"
    timeout_steps: int = 3


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case.

    report: where what the scenario puts a subject through was published: issue or pull request
    numbers, of sgl-project/sglang unless a repository is named. The matrix runs those that have
    one. steps: scheduler steps. workload / faults: plain objects, see ``workloads`` and ``faults``.
    traffic: the ranks also carry a model's traffic, see ``workloads.traffic``. backend: what that
    traffic goes over; nccl needs a GPU per rank, and carries it whether ``traffic`` says so or not.
    device: where the pools and the events are; on cuda ranks may share a GPU. agree_on: what the
    agreement goes over; nccl takes tensors on the GPU and groups that know no tags.
    claims: promises held against the subject besides its own: ``"budget:<protocol>"``,
    ``"stage-local"``. calls: what the loop calls besides the check. prefetch: the stop policy of
    its prefetch checks. progress_within: steps within which work that is ready must be completed.
    deadline_ms: wall time without any progress of any rank, before it is a hang.
    expect: one expectation or several, the first that applies counts; none means ``ok``.
    """

    name: str
    topology: Topology
    workload: dict[str, Any]
    comment: str = ""
    report: str = ""
    subject: str = "batched"
    steps: int = 8
    seed: int = 0
    storage: bool = False
    traffic: bool = False
    sidecars: list[Sidecar] = []
    sizes: Sizes = Sizes()
    faults: list[dict[str, Any]] = []
    claims: list[str] = []
    calls: list[CallSpec] = []
    prefetch: PrefetchStop = PrefetchStop()
    progress_within: int = 2
    deadline_ms: int = 10_000
    backend: Literal["gloo", "nccl"] = "gloo"
    device: Literal["cpu", "cuda"] = "cpu"
    agree_on: Literal["gloo", "nccl"] = "gloo"
    expect: Expect | list[Expect] = []

    def __post_init__(self) -> None:
        _check_word("name", self.name)
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
        sizes = self.sizes
        values = sizes.layers * sizes.heads * sizes.head_dim
        values *= max(sizes.device_pages, sizes.host_pages)
        if values > MAX_POOL_VALUES:
            raise ValueError(f"sizes come to {values} values a pool: at most {MAX_POOL_VALUES}")
        check_plain("workload", self.workload)
        check_plain("faults", self.faults)

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
            raise BadInput(f"scenario {shortened(self.name)}: {error}") from error


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {brief(value)}: give a whole number from {low} to {high}")


def _check_word(name: str, value: str) -> None:
    unfit = any(char in "/\\" or char.isspace() or not char.isprintable() for char in value)
    if not value or unfit:
        raise ValueError(f"{name} is {brief(value)}: give a word without blanks or slashes")


def check_plain(where: str, value: Any) -> None:
    """Raise ValueError for a number past MAX_NUMBER or objects nested past MAX_NESTED in plain JSON
    values; ``where`` is what they are called.
    """
    waiting = [(where, value, 0)]
    while waiting:
        where, value, depth = waiting.pop()
        if depth > MAX_NESTED:
            raise ValueError(f"{shortened(where)} is nested more than {MAX_NESTED} deep: unfold it")
        if isinstance(value, dict):
            waiting += [(f"{where}.{key}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{where}[{at}]", item, depth + 1) for at, item in enumerate(value)]
        elif isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
            limits = f"give a number from -{MAX_NUMBER} to {MAX_NUMBER}"
            raise ValueError(f"{shortened(where)} is {brief(value)}: {limits}")


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
            f"'on' is {brief(where)}: give leader, followers, all, or any of pp, tp, cp, rank"
        )
    for key in where:
        if key not in ("pp", "tp", "cp", "rank"):
            raise BadInput(f"'on' has the unknown key {brief(key)}: give any of pp, tp, cp, rank")

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
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: cannot be read ({error})") from error
    except msgspec.DecodeError as error:
        raise BadInput(f"{path}: is not JSON ({error})") from error
    except RecursionError as error:
        raise BadInput(f"{path}: is nested too deep to be read: unfold it") from error
    return from_object(data, str(path))


def load_all(paths: Iterable[Path]) -> list[Scenario]:
    """Read many scenario files, in the order given. Raises BadInput at the first bad one."""
    return [load(path) for path in paths]
