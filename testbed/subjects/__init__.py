"""What is put under test, by name: the minimal cache with a protocol, planted bugs, SGLang
releases, classes of your own.

A subject knows one rank's cache, controller and groups. Scenarios, faults, workloads and the rank's
loop know it by the face in ``base.Subject``. What may not live here: anything that looks at another
rank but through ``torch.distributed``.
"""

from testbed import protocols
from testbed.cache import KVCache, TransferController
from testbed.errors import BadInput
from testbed.protocols import Groups
from testbed.scenario import Scenario
from testbed.subjects import bugs, own, sglang
from testbed.subjects.base import Map, Subject
from testbed.subjects.minimal import MinimalSubject

RELEASES = ("0.5.18", "0.5.19", "0.5.23")
"""Releases that ``available`` names; any release that lifting can deal with may be asked for."""

__all__ = [
    "RELEASES",
    "Map",
    "MinimalSubject",
    "Subject",
    "available",
    "check",
    "make",
    "places_tensors",
    "preload",
    "prepare",
    "source",
    "versions",
]


def available() -> dict[str, str]:
    """Name -> one line on what it is, of the subjects that need no more than their name."""
    named = {
        name: f"minimal cache; {protocol.summary}" for name, protocol in protocols.REGISTRY.items()
    }
    named |= bugs.available()
    for version in RELEASES:
        named[f"{sglang.PREFIX}{version}"] = "UnifiedRadixCache of that release, lifted"
    return named


def check(name: str) -> None:
    """Raises BadInput for a name that stands for no subject and for a release that does not exist,
    EnvironmentFault for a release that is not in the cache and cannot be fetched.
    """
    version = _release(name)
    if version is not None:
        sglang.fetch(version)
    elif name.startswith(bugs.PREFIX):
        bugs.find(name)
    elif own.is_own(name):
        own.find(name)
    elif name not in protocols.REGISTRY:
        raise BadInput(
            f"subject {name!r} is unknown: give one of {', '.join(protocols.REGISTRY)}, "
            "bug:<name>, sglang==<version>, or <package.module>:<Class>"
        )


def prepare(name: str) -> None:
    """Have everything at hand that ranks need: a release is fetched, and lifted to see that it can
    be. Raises as ``check`` does.
    """
    check(name)
    preload(name)


def preload(name: str) -> None:
    """What a host does once before it forks ranks of this subject: lift the release, or import the
    module, so that no rank has to. Single-threaded, touches no torch operation. Raises as ``check``
    does.
    """
    version = _release(name)
    if version is not None:
        sglang.lifted(version)
    elif not name.startswith(bugs.PREFIX) and own.is_own(name):
        own.find(name)


def places_tensors(name: str) -> bool:
    """Whether the subject's tensors lie where its groups want them (``Groups.device``); releases
    and planted bugs have them on the CPU.
    """
    return _release(name) is None and not name.startswith(bugs.PREFIX)


def versions(name: str) -> dict[str, str]:
    """What of others the subject is made of, for the record: a release's wheel and its SHA-256."""
    version = _release(name)
    return {} if version is None else sglang.versions(version)


def _release(name: str) -> str | None:
    return name.removeprefix(sglang.PREFIX) if name.startswith(sglang.PREFIX) else None


def source(name: str) -> str:
    """The file of a subject of your own, "" for all others: what raises there is the subject's."""
    return "" if name.startswith(bugs.PREFIX) else own.source_of(name)


def make(
    name: str,
    cache: KVCache,
    controller: TransferController | None,
    groups: Groups,
    scenario: Scenario,
) -> Subject:
    """The subject of one rank, listening to its cache's splits. Raises as ``check`` does."""
    subject: Subject
    version = _release(name)
    if version is not None:
        release = sglang.lifted(version)
        subject = sglang.SglangSubject(release, cache, controller, groups, scenario.storage)
    else:
        check(name)
        sidecars = tuple(sidecar.name for sidecar in scenario.sidecars)
        storage = scenario.storage
        if name.startswith(bugs.PREFIX):
            subject = bugs.make(name, cache, controller, groups, storage, sidecars)
        elif own.is_own(name):
            subject = own.find(name)(cache, controller, groups, scenario)
        else:
            protocol = protocols.make(name, groups)
            subject = MinimalSubject(cache, controller, protocol, storage, sidecars)
    cache.on_split = subject.on_split
    return subject
