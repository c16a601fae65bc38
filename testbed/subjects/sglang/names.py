"""Names of lifted subjects: ``sglang==0.5.19``, ``sglang@FOLDER``, each also with ``:hiradix``."""

import re
from typing import Literal, NamedTuple

from testbed.model.errors import BadInput

PACKAGE = "sglang"
RELEASE, CHECKOUT = f"{PACKAGE}==", f"{PACKAGE}@"
UNIFIED, HIRADIX = "unified", "hiradix"

CacheName = Literal["unified", "hiradix"]

# ASCII digits only: \d would take those of other scripts, of which no version consists.
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*")


class SubjectName(NamedTuple):
    """A name taken apart. where: a version number, or a folder as it was written. cache: which of
    the source's cache classes.
    """

    kind: Literal["release", "checkout"]
    where: str
    cache: CacheName


def is_lifted(name: str) -> bool:
    """Whether the name is one of a subject lifted from SGLang, well formed or not."""
    return name.startswith((RELEASE, CHECKOUT))


def parse(name: str) -> SubjectName:
    """The parts of a name for which ``is_lifted`` holds. Raises BadInput for a version that is no
    version number and for a folder that is not named.
    """
    source, cache = _cache_of(name)
    if source.startswith(RELEASE):
        version = source.removeprefix(RELEASE)
        check_version(version)
        return SubjectName("release", version, cache)
    folder = source.removeprefix(CHECKOUT)
    if not folder:
        raise BadInput(f"subject {name!r}: names no folder, write {CHECKOUT}FOLDER")
    return SubjectName("checkout", folder, cache)


def check_version(version: str) -> None:
    """Raises BadInput where ``version`` cannot be a release's number."""
    if _VERSION.fullmatch(version) is None:
        raise BadInput(
            f"subject {RELEASE}{version}: {version!r} is no version number, write {RELEASE}0.5.19, "
            f"or {RELEASE}0.5.19:{HIRADIX} for its HiRadixCache"
        )


def _cache_of(name: str) -> tuple[str, CacheName]:
    if name.endswith(f":{HIRADIX}"):
        return name.removesuffix(f":{HIRADIX}"), "hiradix"
    return name, "unified"
