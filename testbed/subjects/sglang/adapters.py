"""The one table of what differs between sources, told by what a source has, never by its number.

Each row of ``Adapter`` says what to look for. A source that came out after this was written gets
the newest row's behaviour as long as the names it goes by are there.
"""

from typing import NamedTuple

from testbed.subjects.sglang.lift import LiftedClass


class Adapter(NamedTuple):
    """How to speak to one lifted class.

    by_id: nodes are addressed by id and a ``tree_core`` keeps them; else as objects. drain: method
    that forgets outstanding sends, "" where there are none. load_locks_host: a pending load holds
    the host copies too. by_handle: pending prefetches are held by ``operation.handle``, else by
    request id. revoke_queue: a storage query that found too little comes back in a queue of its
    own.
    """

    by_id: bool
    drain: str
    load_locks_host: bool
    by_handle: bool
    revoke_queue: bool


_DRAINS = ("_drain_async_work", "_reap_completed_async_work")


def adapter_of(cache: LiftedClass) -> Adapter:
    """The adapter of a class that was lifted."""
    return Adapter(
        by_id="tree_core" in cache.reads,
        drain=next((name for name in _DRAINS if name in cache.methods), ""),
        load_locks_host=any(
            cache.mentions(unlock, "loading_check")
            for unlock in ("dec_host_lock_ref", "release_host")
        ),
        by_handle=cache.mentions("handle"),
        revoke_queue=cache.mentions("prefetch_revoke_queue"),
    )
