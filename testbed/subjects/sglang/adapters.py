"""The one table of what differs between sources, told by what a source has, never by its number.

Each row of ``Adapter`` says what to look for. A source that came out after this was written gets
the newest row's behaviour as long as the names it goes by are there.
"""

from collections.abc import Iterable
from typing import NamedTuple

from testbed.model.scenario import Call
from testbed.subjects.sglang.lift import LiftedClass


class Adapter(NamedTuple):
    """How to speak to one lifted class.

    by_id: nodes are addressed by id and a ``tree_core`` keeps them; else as objects. drain: method
    that forgets outstanding sends, "" where there are none. load_locks_host: a pending load holds
    the host copies too. by_handle: pending prefetches are held by ``operation.handle``, else by
    request id. revoke_queue: a storage query that found too little comes back in a queue of its
    own. allocates_first: host pages of a prefetch are allocated before storage is asked.
    prefetch_acks: pages that arrived are told through a queue of ACKs, else on the operation.
    checks_by_rid: a prefetch check is given a handle and takes the request id from it.
    storage: there is a part for storage at all. sidecars: it releases pages of pools beside the KV
    cache's own.
    calls: the methods that scenarios can have called besides the check, of those that there are.
    """

    by_id: bool
    drain: str
    load_locks_host: bool
    by_handle: bool
    revoke_queue: bool
    allocates_first: bool
    prefetch_acks: bool
    checks_by_rid: bool
    storage: bool
    sidecars: bool
    calls: dict[Call, str]


_CALLS: dict[Call, tuple[str, ...]] = {
    "flush": ("flush_write_through_acks", "flush_pending_backups"),
    "write-back": ("writing_check",),
    "storage-drain": ("drain_storage_control_queues",),
    "prefetch-check": ("check_prefetch_progress",),
    "load-back-poll": ("is_load_back_event_done",),
}
CALLED = tuple(name for names in _CALLS.values() for name in names)
"""Methods to lift for that, besides what the check reaches."""

_DRAINS = ("_drain_async_work", "_reap_completed_async_work")


def adapter_of(cache: LiftedClass) -> Adapter:
    """The adapter of a class that was lifted."""
    return Adapter(
        by_id="tree_core" in cache.reads,
        drain=_first(_DRAINS, cache),
        load_locks_host=any(
            cache.mentions(unlock, "loading_check")
            for unlock in ("dec_host_lock_ref", "release_host")
        ),
        by_handle=cache.mentions("handle"),
        revoke_queue=cache.mentions("prefetch_revoke_queue"),
        allocates_first=cache.mentions("prefetch_revoke_queue")
        and not cache.mentions("prefetch_hit_queue"),
        prefetch_acks=cache.mentions("ack_prefetch_queue"),
        checks_by_rid=cache.mentions("rid", "check_prefetch_progress"),
        storage=cache.mentions("ack_backup_queue"),
        sidecars=cache.mentions("extra_host_mem_release_queues"),
        calls={call: found for call, names in _CALLS.items() if (found := _first(names, cache))},
    )


def _first(names: Iterable[str], cache: LiftedClass) -> str:
    return next((name for name in names if name in cache.methods), "")
