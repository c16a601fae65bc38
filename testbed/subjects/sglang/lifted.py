"""One cache class of one source, lifted: found, cut at our seams, ready to be made a subject of."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed.subjects.sglang import step_time, storage
from testbed.subjects.sglang.adapters import Adapter, adapter_of
from testbed.subjects.sglang.lift import Library, LiftedClass, LiftError, Module
from testbed.subjects.sglang.seams import Seams, cut_by
from testbed.subjects.sglang.source import Source

CONTROLLER_MODULE = "sglang.srt.managers.cache_controller"


@dataclass(frozen=True)
class CacheClass:
    """A cache class that can be lifted. roots: methods wanted where it has them, with all that they
    reach. needs: those of the lifted class without which it is no subject. seams: from the
    attributes that the whole class uses of ``self``, where lifting stops. controller_optional:
    whether a server can have one without a transfer controller. stand_ins: values for names that
    its file imports.
    """

    module: str
    name: str
    roots: tuple[str, ...]
    needs: Callable[[LiftedClass], Iterable[str]]
    seams: Callable[[frozenset[str]], type[Seams]]
    controller_optional: bool
    stand_ins: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lifted:
    """cache: the class cut down, without state. engine: that class over our seams. module: the file
    that it comes from. ack: makes the source's own ACK tuple, as ``TransferController.make_ack``.
    storage: the cache controller's class cut down to its storage threads, where the source tells of
    fetched pages by ACKs.
    """

    source: Source
    cache: LiftedClass
    engine: type
    module: Module
    ack: Callable[..., Any]
    storage: LiftedClass | None
    adapter: Adapter


def has_class(source: Source, wanted: CacheClass) -> bool:
    """Whether the class and its check are there, by the text alone: quick, and no promise that they
    can be lifted. Raises EnvironmentFault for a file that cannot be read.
    """
    library = Library(source, {})
    if not library.has(wanted.module):
        return False
    text = library.text(wanted.module)
    return f"class {wanted.name}" in text and "def check_hicache_events" in text


def lift(source: Source, wanted: CacheClass) -> Lifted:
    """Raises LiftError naming what of which file is missing."""
    replaced = {
        "rank_consensus": _undecorated,
        "time": step_time,
        "STORAGE_BATCH_SIZE": storage.BATCH_PAGES,
        **wanted.stand_ins,
    }
    library = Library(source, replaced)
    module = library.module(wanted.module)
    seams = wanted.seams(module.attributes_of_self(wanted.name))
    cache = module.lift_class(wanted.name, wanted.roots, cut_by(seams))
    for root in wanted.needs(cache):
        if root not in cache.methods:
            raise LiftError(f"{wanted.name} in {module.told} has no {root}")
    engine = type(wanted.name, (seams, cache.cls), {})
    adapter = adapter_of(cache)
    controller = library.module(CONTROLLER_MODULE)
    ack = _with_known_fields(controller.get("HiCacheAck"))
    threads = _storage_threads(controller) if adapter.prefetch_acks else None
    return Lifted(source, cache, engine, module, ack, threads, adapter)


def _storage_threads(controller: Module) -> LiftedClass:
    threads = controller.lift_class(
        "HiCacheController", storage.ROOTS, cut_by(storage.StorageSeams)
    )
    if storage.READS not in threads.methods:
        raise LiftError(f"HiCacheController in {controller.told} has no {storage.READS}")
    return threads


def _with_known_fields(ack: Any) -> Callable[..., Any]:
    # Earlier ACKs have fewer fields than there is to tell.
    fields = frozenset(ack._fields)
    return lambda **given: ack(**{name: value for name, value in given.items() if name in fields})


def _undecorated(function: Any = None, **_: Any) -> Any:
    # rank_consensus compares calls over ranks for debugging; it is off in a release unless asked
    # for.
    return function if function is not None else lambda wrapped: wrapped
