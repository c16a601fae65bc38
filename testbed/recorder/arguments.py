"""What a call of an operation asks for, read from the arguments of whichever way it came: a public
function, a method of the process group, an operator of the dispatcher.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from testbed.recorder.guard import tensors_in
from testbed.recorder.operations import Form

SHORT = timedelta(minutes=1)
"""Who gives up sooner needs nobody to prove that it would never return."""

_REDUCE_OPS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


class Asked(NamedTuple):
    """What a call asks for, whichever way it came.

    group: the process group, None for the default one. root: of a collective, peer of a message, as
    a global rank; -1 for none. tag: -1 for a collective. tensors: by the names of the Form. sizes:
    what goes to each member and comes from each, where the Form has them. timed: with a time limit
    of its own.
    """

    group: Any
    root: int
    tag: int
    reduce_op: str
    tensors: Mapping[str, Any]
    sizes: tuple[Sequence[int], Sequence[int]] = ((), ())
    timed: bool = False


Reader = Callable[[tuple[Any, ...], dict[str, Any]], Asked]


def of_public(
    form: Form, signature: inspect.Signature, ranks_of: Callable[[Any], tuple[int, ...]]
) -> Reader:
    """What reads the arguments of a public function."""
    places = {name: place for place, name in enumerate(signature.parameters)}
    root_name = form.root or {"send": "dst", "receive": "src"}.get(form.way, "")

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
        def given(name: str) -> Any:
            place = places.get(name, len(args))
            return kwargs.get(name, args[place] if place < len(args) else None)

        group = given("group")
        root = form.default_root
        if root_name:
            within, named = given(f"group_{root_name}"), given(root_name)
            if isinstance(within, int):
                root = _nth(ranks_of(group), within)
            elif isinstance(named, int):
                root = named
        tensors = {name: given(name) for name in form.tensors}
        return Asked(
            group,
            root,
            int(given("tag") or 0) if form.way else -1,
            _reduce_op(given("op"), "SUM" if form.reduces else ""),
            tensors,
            _sizes(form, tensors, given("input_split_sizes"), given("output_split_sizes")),
            _is_short(given("timeout")),
        )

    return read


def of_method(form: Form, ranks_of: Callable[[Any], tuple[int, ...]]) -> Reader:
    """What reads the arguments of a method of ProcessGroup, in any of its overloads: tensors come
    first, then splits, peer and tag, or a root; an options object, a reduction, a time limit where
    they will.
    """

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
        group, *rest = (*args, *kwargs.values())
        tensors = dict(zip(form.tensors, rest, strict=False))
        others = rest[len(form.tensors) :]
        numbers = [int(one) for one in others if isinstance(one, int)]
        reduction = next((one for one in others if _reduce_op(one, "")), None)
        options = next((one for one in others if hasattr(one, "timeout")), None)
        ranks = ranks_of(group)
        root, tag = -1, -1
        if form.way:
            *peer, tag = numbers or [0]
            root = _nth(ranks, peer[0]) if peer else -1
        elif form.root:
            root = _nth(ranks, getattr(options, "rootRank", numbers[0] if numbers else 0))
        given = getattr(options, "reduceOp", reduction)
        splits = [one for one in others if isinstance(one, list | tuple)]
        comes, goes = splits if len(splits) == 2 else (None, None)
        limit = getattr(options, "timeout", None)
        limits = [one for one in (limit, *others) if isinstance(one, timedelta)]
        return Asked(
            group,
            root,
            tag,
            _reduce_op(given, "SUM" if form.reduces else ""),
            tensors,
            _sizes(form, tensors, goes, comes),
            any(_is_short(one) for one in limits),
        )

    return read


def _nth(ranks: Sequence[int], within: int) -> int:
    """Global rank of a member; the number as it was given where there is no such member."""
    return ranks[within] if 0 <= within < len(ranks) else within


def _reduce_op(given: Any, default: str) -> str:
    if given is None:
        return default
    kind = getattr(given, "op", given)
    return _REDUCE_OPS.get(kind, default) if isinstance(kind, dist.ReduceOp.RedOpType) else default


def _sizes(
    form: Form, tensors: Mapping[str, Any], goes: Any, comes: Any
) -> tuple[Sequence[int], Sequence[int]]:
    """Elements that go to each member, and that come from each; none where that is even."""
    if form.splits == "lists":
        come, go = (list(tensors_in(tensors[name])) for name in form.tensors)
        return [one.numel() for one in go], [one.numel() for one in come]
    if not (form.splits and (goes or comes)):
        return (), ()
    out, into = (next(tensors_in(tensors[name]), None) for name in form.tensors)
    return _elements(into, goes), _elements(out, comes)


def _elements(tensor: torch.Tensor | None, rows: Any) -> list[int]:
    if tensor is None or not rows:
        return []
    row = tensor.numel() // tensor.shape[0] if tensor.dim() and tensor.shape[0] else 0
    return [int(count) * row for count in rows]


def of_kernel(form: Form, operator: Any, ranks_of: Callable[[Any], tuple[int, ...]]) -> Reader:
    """What reads the arguments of an operator of the dispatcher."""
    names = [argument.name for argument in operator._schema.arguments]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
        given = dict(zip(names, args, strict=False)) | kwargs
        group = dist.ProcessGroup.unbox(given["process_group"])
        ranks = ranks_of(group)
        ends = [given[name] for name in ("root_rank", "dst", "src") if name in given]
        root = int(ends[0]) if ends else -1
        values = [one for name, one in given.items() if name != "process_group"]
        tensors = dict(zip(form.tensors, values, strict=False))
        sizes = _sizes(
            form, tensors, given.get("input_split_sizes"), given.get("output_split_sizes")
        )
        limit = timedelta(milliseconds=given.get("timeout", -1))
        return Asked(
            group,
            _nth(ranks, root) if root >= 0 else -1,
            given.get("tag", 0) if form.way else -1,
            "",
            tensors,
            sizes,
            _is_short(limit),
        )

    return read


def _is_short(limit: Any) -> bool:
    if isinstance(limit, int | float):
        limit = timedelta(seconds=limit)
    return isinstance(limit, timedelta) and timedelta(0) < limit < SHORT
