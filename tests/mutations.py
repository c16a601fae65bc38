"""Valid JSON made wrong: strategies that change a few places of a document, or bytes of a file."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

_DEEP: list[Any] = []
for _ in range(40):
    _DEEP = [_DEEP]

JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    7,
    2**31,
    2**63,
    2**64,
    -(2**64),
    10**30,
    0.5,
    -0.0,
    1e300,
    -1e300,
    "",
    "all",
    "both",
    "x",
    "a b",
    "a/b",
    "nul\0",
    "\x1b[31m",
    "two\nlines",
    "漢" * 150,
    "a" * 5000,
    "**",
    "-",
    [],
    [[]],
    [0, 1],
    ["x", True],
    [2**64],
    {},
    {"ms": 1e300},
    {"ms": -1},
    {"error": ""},
    {"rank": 2**64},
    {"rank": [0, 300]},
    {"pp": -1},
    {"kind": "kill"},
    {"kind": ["kill"]},
    {"kind": {}},
    {"": None},
    _DEEP,
)


@st.composite
def mutated(draw: st.DrawFn, documents: st.SearchStrategy[Any], most: int = 3) -> Any:
    """One of the documents with one to ``most`` places changed, removed, doubled or added to."""
    document = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(document))
        if not places:
            break
        parent, key = draw(st.sampled_from(places))
        _change(draw, parent, key)
    return document


def _change(draw: st.DrawFn, parent: Any, key: Any) -> None:
    junk = copy.deepcopy(draw(st.sampled_from(JUNK)))
    how = draw(st.sampled_from(("replace", "remove", "double", "add", "nudge")))
    if how == "remove":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif how == "add" and isinstance(parent[key], dict):
        parent[key][draw(st.sampled_from(("zzz", "two\nlines", "on", "kind")))] = junk
    elif how == "nudge" and type(parent[key]) is int:
        parent[key] += draw(st.integers(-3, 3))
    else:
        parent[key] = junk


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) there is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield value, key
            yield from _places(item)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield value, place
            yield from _places(item)


@st.composite
def damaged(draw: st.DrawFn, files: st.SearchStrategy[bytes]) -> bytes:
    """One of the files with a byte flipped, or cut short, or with something in its place."""
    raw = bytearray(draw(files))
    how = draw(st.sampled_from(("flip", "cut", "other")))
    if how == "flip":
        for _ in range(draw(st.integers(1, 3))):
            raw[draw(st.integers(0, len(raw) - 1))] ^= draw(st.integers(1, 255))
    elif how == "cut":
        del raw[draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw = bytearray(draw(st.binary(max_size=64)))
    return bytes(raw)
