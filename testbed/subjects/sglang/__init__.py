"""SGLang's own code as subjects: lifted out of a release's wheel or of a checkout, over our cache
and controller.

``names`` reads a subject's name; ``releases`` and ``checkout`` are where sources come from
(``source``); ``lift`` brings parts of them to life; ``lifted`` cuts a cache class at our ``seams``;
``adapters`` is the table of what differs between sources; ``unified`` and ``hiradix`` join a cache
class to a rank. Nothing of SGLang is imported or kept in this repository.
"""

from functools import cache
from typing import NamedTuple

from testbed.cache import KVCache, TransferController
from testbed.protocols import Groups
from testbed.scenario import Scenario
from testbed.subjects.sglang import checkout, names, releases
from testbed.subjects.sglang.lift import LiftError
from testbed.subjects.sglang.lifted import CacheClass, Lifted, lift
from testbed.subjects.sglang.names import is_lifted
from testbed.subjects.sglang.source import Source
from testbed.subjects.sglang.subject import LiftedSubject
from testbed.subjects.sglang.unified import UNIFIED, UnifiedSubject

__all__ = ["LiftError", "cached", "check", "is_lifted", "lifted", "make", "versions"]


class _Kind(NamedTuple):
    cache: CacheClass
    subject: type[LiftedSubject]


_KINDS: dict[names.CacheName, _Kind] = {"unified": _Kind(UNIFIED, UnifiedSubject)}


def cached() -> list[str]:
    """The subjects of releases that lie in the cache, oldest first."""
    return [f"{names.RELEASE}{version}" for version in releases.cached()]


def check(name: str) -> None:
    """Fetch a release that is not in the cache, or not as it was fetched; look for a checkout's
    package. Raises BadInput for a name or a release that does not exist and for a folder without
    the package, EnvironmentFault for a release that cannot be fetched.
    """
    parsed = names.parse(name)
    if parsed.kind == "release":
        releases.fetch(parsed.where)
    else:
        checkout.find(parsed.where)


@cache
def lifted(name: str) -> Lifted:
    """Lift a subject, once per process. Raises as ``check``, and LiftError for what cannot be
    lifted.
    """
    parsed = names.parse(name)
    return lift(_source(parsed), _KINDS[parsed.cache].cache)


def versions(name: str) -> dict[str, str]:
    """Where the lifted code comes from, for the record."""
    return lifted(name).source.versions()


def make(
    name: str,
    cache: KVCache,
    controller: TransferController | None,
    groups: Groups,
    scenario: Scenario,
) -> LiftedSubject:
    """The subject of one rank. Raises as ``lifted``."""
    kind = _KINDS[names.parse(name).cache]
    return kind.subject(lifted(name), cache, controller, groups, scenario)


def _source(name: names.SubjectName) -> Source:
    return releases.opened(name.where) if name.kind == "release" else checkout.find(name.where)
