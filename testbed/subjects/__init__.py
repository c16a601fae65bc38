"""What is put under test, by name: the minimal cache with a protocol, planted bugs, SGLang
releases, classes of your own.

A subject knows one rank's cache, controller and groups. Scenarios, faults, workloads and the rank's
loop know it by the face in ``base.Subject``. What may not live here: anything that looks at another
rank but through ``torch.distributed``.
"""

from collections.abc import Iterable

from testbed import protocols
from testbed.cache import KVCache, TransferController
from testbed.model.errors import BadInput, brief
from testbed.model.scenario import Call, Scenario
from testbed.protocols import Groups
from testbed.recorder.ownership import claim_class
from testbed.subjects import bugs, face, own, sglang
from testbed.subjects.base import Map, Need, Subject
from testbed.subjects.minimal import MinimalSubject
from testbed.subjects.sglang import RELEASE, check_form, fetched

__all__ = [
    "RELEASE",
    "Map",
    "MinimalSubject",
    "Need",
    "Subject",
    "available",
    "cached",
    "check",
    "check_calls",
    "check_form",
    "check_needs",
    "check_places_tensors",
    "fetched",
    "make",
    "preload",
    "prepare",
    "versions",
]


_UNMET: dict[Need, str] = {
    "storage": 'has no part for storage: leave "storage" off',
    "sidecars": "has no pools beside the KV cache's own: leave sidecars and extra-pool out",
    "no-controller": "always has a transfer controller: leave no-controller out",
}


def available() -> dict[str, str]:
    """Name -> one line on what it is, of the subjects that need no more than their name. Of
    releases those in the cache, checked, and those known of; no index is asked.
    """
    named = {
        name: f"minimal cache; {protocol.summary}" for name, protocol in protocols.REGISTRY.items()
    }
    named |= bugs.available()
    return named | sglang.known()


def cached() -> list[str]:
    """The subjects of releases that lie in the cache, oldest first. Asks no index."""
    return sglang.cached()


def check(name: str) -> None:
    """Raises BadInput for a name that stands for no subject and for a release that does not exist,
    EnvironmentFault for a release that is not in the cache and cannot be fetched.
    """
    if sglang.is_lifted(name):
        sglang.check(name)
    elif name.startswith(bugs.PREFIX):
        bugs.find(name)
    elif own.is_own(name):
        own.find(name)
    elif name not in protocols.REGISTRY:
        raise BadInput(
            f"subject {brief(name)} is unknown: give one of {', '.join(protocols.REGISTRY)}, "
            "bug:<name>, sglang==<version>, sglang@<folder>, or <package.module>:<Class>"
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
    if sglang.is_lifted(name):
        sglang.lifted(name)
    elif not name.startswith(bugs.PREFIX) and own.is_own(name):
        own.find(name)


def check_places_tensors(name: str) -> None:
    """Raises BadInput unless the subject's tensors lie where its groups want them
    (``Groups.device``); releases and planted bugs have them on the CPU.
    """
    if sglang.is_lifted(name) or name.startswith(bugs.PREFIX):
        raise BadInput(
            f"subject {name} agrees by tensors on the CPU, which NCCL cannot carry:"
            " have it agree over gloo, or take a protocol or a class of your own"
        )


def check_calls(name: str, wanted: Iterable[Call]) -> None:
    """Raises BadInput where a release or checkout does not have what a scenario would call of it
    besides its check; otherwise as ``prepare``. What a class of your own has shows in its rank.
    """
    for call in wanted:
        if sglang.is_lifted(name) and call not in sglang.offers(name):
            has = ", ".join(sglang.offers(name)) or "none"
            raise BadInput(f"subject {name} has no {call} to call (it has: {has})")


def check_needs(name: str, needs: Iterable[Need]) -> None:
    """Raises BadInput where the class of a release or checkout lacks what a scenario needs, so that
    a run would say nothing of it; otherwise as ``prepare``.
    """
    for need in needs:
        if sglang.is_lifted(name) and need not in sglang.meets(name):
            raise BadInput(f"subject {name} {_UNMET[need]}, or choose another subject")


def versions(name: str) -> dict[str, str]:
    """What of others the subject is made of, for the record: a release's wheel and its SHA-256."""
    return sglang.versions(name) if sglang.is_lifted(name) else {}


def make(
    name: str,
    cache: KVCache,
    controller: TransferController | None,
    groups: Groups,
    scenario: Scenario,
) -> Subject:
    """The subject of one rank, listening to its cache's splits. Raises as ``check`` does, and
    FaceError for what a class of your own lacks.
    """
    subject: Subject
    if sglang.is_lifted(name):
        subject = sglang.make(name, cache, controller, groups, scenario)
    else:
        check(name)
        sidecars = tuple(sidecar.name for sidecar in scenario.sidecars)
        storage = scenario.storage
        if name.startswith(bugs.PREFIX):
            subject = bugs.make(name, cache, controller, groups, storage, sidecars)
        elif own.is_own(name):
            subject = face.called_to_make(own.find(name), name)(cache, controller, groups, scenario)
            claim_class(type(subject))
            face.check(subject)
        else:
            protocol = protocols.make(name, groups)
            subject = MinimalSubject(cache, controller, protocol, storage, sidecars)
        if isinstance(subject, MinimalSubject):
            subject.stop = scenario.prefetch
    cache.on_split = subject.on_split
    return subject
