"""Every key that a scenario file may have, read off the Structs that read the files."""

import types
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from testbed import faults, workloads
from testbed.model.scenario import CallSpec, Expect, PrefetchStop, Scenario, Sidecar, Sizes, Where
from testbed.model.topology import Topology
from testbed.workloads.scripted import PrefetchSpec, StorageSpec, TransferSpec


class Key(NamedTuple):
    """One key. of: the object it belongs to. takes: what it may be. default: "" where it must be
    given. meaning: of the object, with its first key only.
    """

    of: str
    name: str
    takes: str
    default: str
    meaning: str


def every_key() -> list[Key]:
    """All of them, in the order in which a scenario file names things."""
    objects: dict[str, Any] = {
        "scenario": Scenario,
        "topology": Topology,
        "sizes": Sizes,
        "sidecars[]": Sidecar,
        "calls[]": CallSpec,
        "prefetch": PrefetchStop,
        "expect": Expect,
        **{f"workload {name}": struct for name, struct in workloads.structs().items()},
        "scripted writes[], loads[]": TransferSpec,
        "scripted storage[]": StorageSpec,
        "scripted prefetches[]": PrefetchSpec,
        **{f"fault {name}": struct for name, struct in faults.structs().items()},
    }
    return [key for of, struct in objects.items() for key in _keys(of, struct)]


def _keys(of: str, struct: Any) -> Iterator[Key]:
    hints = get_type_hints(struct)
    meaning = " ".join((struct.__doc__ or "").replace("``", "").split())
    fields = [field for field in msgspec.structs.fields(struct) if field.name != "kind"]
    for field in fields:
        yield Key(of, field.name, _takes(hints[field.name]), _default(field), meaning)
        meaning = ""
    if not fields:
        yield Key(of, "", "", "", meaning)


def _takes(hint: Any) -> str:
    if hint == Where:
        return "ranks"
    if hint is type(None):
        return "null"
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return " | ".join(_takes(part) for part in parts)
    if origin is list:
        return f"[{_takes(parts[0])}]"
    if origin is tuple:
        return f"[{', '.join(_takes(part) for part in parts)}]"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(str(member.value) for member in hint)
    if (isinstance(hint, type) and issubclass(hint, msgspec.Struct)) or origin is dict:
        return "object"
    names = {int: "number", float: "number", str: "text", bool: "true | false"}
    return names.get(hint, str(hint))


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        plain = msgspec.to_builtins(field.default)
        return (
            "its own defaults" if isinstance(plain, dict) else msgspec.json.encode(plain).decode()
        )
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.json.encode(field.default_factory()).decode()
    return ""
