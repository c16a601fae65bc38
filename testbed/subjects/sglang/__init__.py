"""SGLang's own code as subjects: lifted out of a release's wheel or of a checkout, over our cache
and controller.

``names`` reads a subject's name; ``releases`` and ``checkout`` are where sources come from
(``source``); ``lift`` brings parts of them to life; ``lifted`` cuts a cache class at our ``seams``;
``adapters`` is the table of what differs between sources; ``unified`` and ``hiradix`` join a cache
class to a rank. Nothing of SGLang is imported or kept in this repository.
"""

from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from testbed.cache import KVCache, TransferController
from testbed.model.errors import BadInput, EnvironmentFault, Terminated
from testbed.model.scenario import Call, Scenario
from testbed.protocols import Groups
from testbed.subjects import bad_code
from testbed.subjects.base import Need
from testbed.subjects.sglang import checkout, names, releases
from testbed.subjects.sglang.hiradix import HIRADIX, HiRadixSubject
from testbed.subjects.sglang.lift import LiftError, Unliftable, is_only_read
from testbed.subjects.sglang.lifted import CacheClass, Lifted, has_class, lift
from testbed.subjects.sglang.names import RELEASE, is_lifted
from testbed.subjects.sglang.seams import AbsentAttribute
from testbed.subjects.sglang.source import Source
from testbed.subjects.sglang.subject import LiftedSubject
from testbed.subjects.sglang.unified import UNIFIED, UnifiedSubject

__all__ = [
    "RELEASE",
    "AbsentAttribute",
    "Unliftable",
    "cached",
    "check",
    "check_form",
    "fetched",
    "is_lifted",
    "known",
    "lifted",
    "make",
    "meets",
    "nobody_gives",
    "offers",
    "versions",
]


KNOWN = (
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
"""Releases with a UnifiedRadixCache that offloads, as of this writing. Any may be asked for."""

KNOWN_HIRADIX = (
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
)
"""Releases whose HiRadixCache is known to be one that can be lifted; there was none after them."""


class _Kind(NamedTuple):
    cache: CacheClass
    subject: type[LiftedSubject]


_KINDS: dict[names.CacheName, _Kind] = {
    "unified": _Kind(UNIFIED, UnifiedSubject),
    "hiradix": _Kind(HIRADIX, HiRadixSubject),
}


def cached() -> list[str]:
    """The subjects of releases that lie in the cache, oldest first."""
    return [f"{names.RELEASE}{version}" for version in releases.cached()]


def check_form(name: str) -> None:
    """Raises BadInput for a name that cannot be one of a lifted subject."""
    names.parse(name)


def known() -> dict[str, str]:
    """Releases by name, those in the cache and those known when this was written, and one line on
    each: what it is, and whether it is at hand. One in the cache that cannot be lifted is left out.
    Asks no index.
    """
    cached = {entry.version: entry for entry in releases.entries()}
    told: dict[str, str] = {}
    for suffix, kind, known in (
        ("", UNIFIED, KNOWN),
        (f":{names.HIRADIX}", HIRADIX, KNOWN_HIRADIX),
    ):
        for version in sorted({*known, *cached}, key=releases.age):
            name = f"{names.RELEASE}{version}{suffix}"
            state = _state(cached[version]) if version in cached else "not fetched yet"
            if version in known or _lifts(cached[version], name, kind):
                told[name] = f"{kind.name} of that release; {state}"
    return told


def fetched(name: str) -> str:
    """Fetch a release as ``check`` does; one line on what is there now. Raises Unliftable too,
    where nothing of it can be lifted.
    """
    version, wanted = names.parse(name)[1:]
    release = releases.fetch(version)
    entry = next(one for one in releases.entries() if one.folder == release.folder)
    hiradix = f"{names.RELEASE}{version}:{names.HIRADIX}"
    if wanted == names.HIRADIX or not _lifts(entry, hiradix, HIRADIX):
        lifted(name)
    return f"{names.RELEASE}{version}: {_state(entry)}"


def _lifts(entry: releases.Entry, name: str, kind: CacheClass) -> bool:
    """Whether the class of a release in the cache can be lifted. Of one that is not whole nothing
    can be said.
    """
    # The text first: a list must not take a second for each entry.
    if entry.trouble or not has_class(releases.opened(entry.version), kind):
        return False
    try:
        lifted(name)
    except (Unliftable, bad_code.BadCode):
        return False
    return True


def _state(entry: releases.Entry) -> str:
    size_mb = entry.size_bytes / 1e6
    sound = f"will be fetched again: {entry.trouble}" if entry.trouble else "hashes ok"
    return f"{size_mb:.1f} MB in {entry.folder}, {sound}"


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
    """Lift a subject, once per process. Raises as ``check``, and Unliftable, or BadCode where the
    code itself is wrong.
    """
    parsed = names.parse(name)
    source = _source(parsed)
    try:
        with bad_code.loading():
            return lift(source, _KINDS[parsed.cache].cache)
    except LiftError as error:
        raise Unliftable(f"subject {name} cannot be lifted, choose another: {error}") from error
    except (BadInput, EnvironmentFault, bad_code.Interrupted, Terminated):
        raise
    except BaseException as error:  # whatever the source's own code raises, SystemExit too
        told = bad_code.told(error, lambda file: file.startswith(source.told("")))
        if not told:
            raise
        raise bad_code.BadCode(f"subject {name} cannot be loaded: {told}") from error


def offers(name: str) -> Collection[Call]:
    """What scenarios can have called of the subject besides its check. Raises as ``lifted``."""
    return lifted(name).adapter.calls


def meets(name: str) -> Collection[Need]:
    """The needs of scenarios that the class can meet. Raises as ``lifted``."""
    adapter = lifted(name).adapter
    has: dict[Need, bool] = {
        "storage": adapter.storage,
        "sidecars": adapter.sidecars,
        "no-controller": _KINDS[names.parse(name).cache].cache.controller_optional,
    }
    return [need for need, met in has.items() if met]


def versions(name: str) -> dict[str, str]:
    """Where the lifted code comes from, for the record."""
    return lifted(name).source.versions()


def nobody_gives(name: str, attribute: str) -> bool:
    """Whether it is certain that no file of the subject's source can give an object of its own that
    attribute. Of a release only some files are at hand, so it never is.
    """
    parsed = names.parse(name)
    if parsed.kind == "release":
        return False
    return is_only_read(attribute, checkout.find(parsed.where).mentioning(attribute))


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
