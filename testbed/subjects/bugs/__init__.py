"""Planted bugs: sound protocols and subjects with one published mistake each, named ``bug:<name>``.

They are what the oracles are measured by, and canaries: one that is no longer caught means that an
oracle has died. One class a bug, in as few lines as its sound parent allows; a file a theme. The
scenario that shows it is a ``bug-*.json`` whose ``subject`` it is; it says which oracle must name
it, and why. What may not live here: anything that is not wrong, but for ground that bugs share.
"""

from typing import Any

from testbed.cache import KVCache, TransferController
from testbed.model.errors import BadInput, brief
from testbed.protocols import Groups
from testbed.subjects.bugs import counting, deciding, entering, messages
from testbed.subjects.bugs.base import OverProtocol
from testbed.subjects.minimal import MinimalSubject

PREFIX = "bug:"

REGISTRY: dict[str, type[Any]] = {
    "early-return-write": entering.EarlyReturnWrite,
    "early-return-load": entering.EarlyReturnLoad,
    "no-agreement": entering.NoAgreement,
    "cp-left-out": entering.CpLeftOut,
    "world-in-skew": entering.WorldInSkew,
    "sync-only-with-work": entering.SyncOnlyWithWork,
    "shifted-stream": entering.ShiftedStream,
    "flush-on-one-rank": entering.FlushOnOneRank,
    "unknown-request": entering.UnknownRequest,
    "loop-left-early": entering.LoopLeftEarly,
    "load-back-poll": entering.LoadBackPoll,
    "poll-only": messages.PollOnly,
    "never-drained": messages.NeverDrained,
    "shared-tag": messages.SharedTag,
    "no-copy": messages.NoCopy,
    "first-stage-only": messages.FirstStageOnly,
    "default-dtype": messages.DefaultDtype,
    "own-pools-only": messages.OwnPoolsOnly,
    "max-for-min": counting.MaxForMin,
    "leader-only-min": counting.LeaderOnlyMin,
    "any-ready": counting.AnyReady,
    "slots-swapped": counting.SlotsSwapped,
    "applied-twice": counting.AppliedTwice,
    "stale-counts": counting.StaleCounts,
    "counted-again": counting.CountedAgain,
    "storage-merged": counting.StorageMerged,
    "no-wait": counting.NoWait,
    "lru-by-clock": deciding.LruByClock,
    "local-free-space": deciding.LocalFreeSpace,
}
"""Name -> the class that makes the mistake: a protocol (``Planted`` and a sound one), or a subject
(``Planted`` and ``OverProtocol``)."""


def available() -> dict[str, str]:
    """``bug:<name>`` -> the mistake and its report, in one line."""
    return {
        f"{PREFIX}{name}": f"{planted.summary} ({planted.report})"
        for name, planted in REGISTRY.items()
    }


def find(name: str) -> type[Any]:
    """The class of ``bug:<name>``. Raises BadInput."""
    planted = REGISTRY.get(name.removeprefix(PREFIX))
    if planted is None:
        raise BadInput(f"planted bug {brief(name)} is unknown: `python -m testbed list subjects`")
    return planted


def sound(name: str) -> str:
    """The subject that is right where ``bug:<name>`` is wrong. Raises BadInput."""
    planted = find(name)
    protocol = planted.made_of if issubclass(planted, OverProtocol) else planted
    return str(planted.sound or protocol.name)


def make(
    name: str,
    cache: KVCache,
    controller: TransferController | None,
    groups: Groups,
    storage: bool,
    sidecars: tuple[str, ...],
) -> MinimalSubject:
    """The subject ``bug:<name>`` of one rank. Raises BadInput."""
    planted = find(name)
    if issubclass(planted, OverProtocol):
        return planted(cache, controller, planted.made_of(groups), storage, sidecars)
    return MinimalSubject(cache, controller, planted(groups), storage, sidecars)
