"""SGLang releases from the package index: fetched once, kept as sources, never imported.

A release is kept in the cache as the Python files of its wheel that lifting may read, with
``source.json`` naming the wheel and the SHA-256 of it and of every file. An entry that is not what
it was when it was fetched is fetched again. The wheels of known releases must be those in
``wheels``; of any wheel no more is read than sources can be large.
"""

import hashlib
import re
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from testbed.model.errors import BadInput, EnvironmentFault
from testbed.subjects.sglang import cache_folder, wheels
from testbed.subjects.sglang.download import download
from testbed.subjects.sglang.names import PACKAGE, RELEASE, check_version

MANIFEST = "source.json"
FORMAT = 1
"""Counts up when ``_KEPT`` grows: entries of an earlier testbed then lack files."""

_KEPT = re.compile(
    r"sglang/srt/((mem_cache|managers|distributed|disaggregation|utils|observability|session)/.*"
    r"|[^/]*)\.py"
)


# The largest file of any release so far has under 0.5 MB, all that are kept of one under 10 MB.
_FILE_LIMIT_BYTES = 8 << 20
_ALL_LIMIT_BYTES = 128 << 20
_MEMBERS_LIMIT = 100_000
_PIECE_BYTES = 1 << 20

# What zipfile raises for an archive that is none, is damaged, encrypted or packed by other means.
_UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
)

# Entries whose files this process has checked: once is enough, reading checks each file again.
_SEEN_SOUND: set[tuple[Path, str]] = set()


class Manifest(msgspec.Struct, frozen=True):
    """What ``source.json`` holds. files: path inside the package -> SHA-256 (hexadecimal)."""

    version: str
    wheel: str
    sha256: str
    files: dict[str, str]
    format: int = 0


class Entry(NamedTuple):
    """A release in the cache, for people. trouble: why it will be fetched again, "" if it won't."""

    version: str
    folder: Path
    files: int
    size_bytes: int
    trouble: str


@dataclass(frozen=True)
class Release:
    """The kept sources of one release."""

    folder: Path
    manifest: Manifest

    @property
    def version(self) -> str:
        """As the package index names it, such as ``0.5.19``."""
        return self.manifest.version

    @property
    def name(self) -> str:
        """``sglang==0.5.19``."""
        return f"{RELEASE}{self.version}"

    def versions(self) -> dict[str, str]:
        """Version, wheel and SHA-256 of the wheel."""
        return {
            "sglang": self.version,
            "sglang-wheel": self.manifest.wheel,
            "sglang-sha256": self.manifest.sha256,
        }

    def has(self, path: str) -> bool:
        """Whether ``path`` (inside the package, such as ``srt/environ.py``) was kept."""
        return path in self.manifest.files

    def read(self, path: str) -> str:
        """Text of one file. Raises EnvironmentFault if it is not what was fetched."""
        trouble, raw = self._bytes(path)
        if trouble:
            raise EnvironmentFault(
                f"{self.told(path)}: {trouble}; "
                f"`python -m testbed subjects fetch {self.name}` fetches it again"
            )
        return raw.decode("utf-8-sig")  # as Python reads it, which passes over a mark at the start

    def told(self, path: str) -> str:
        """How tracebacks and messages name a file: ``sglang-0.5.19/srt/mem_cache/...``."""
        return f"{PACKAGE}-{self.version}/{path}"

    def trouble(self) -> str:
        """The first file that is not what was fetched, and why; "" where all are, and their wheel
        is the known one.
        """
        known = wheels.SHA256.get(self.version, self.manifest.sha256)
        if known != self.manifest.sha256:
            return f"it was made from another wheel than the known one (SHA-256 {known})"
        for path in self.manifest.files:
            trouble, _ = self._bytes(path)
            if trouble:
                return f"{path}: {trouble}"
        return ""

    def _bytes(self, path: str) -> tuple[str, bytes]:
        file = self.folder / path
        try:
            if not file.is_file():  # a pipe, say, would be read for ever
                return "is not in the cache", b""
            raw = file.read_bytes()
        except OSError as error:
            return f"cannot be read from the cache ({error.strerror})", b""
        if hashlib.sha256(raw).hexdigest() != self.manifest.files.get(path):
            return "the cached file was changed", raw
        return ("" if _is_text(raw) else "the cached file is no UTF-8 text"), raw


def cached() -> list[str]:
    """Versions that the cache holds, oldest first; their files are not looked at."""
    prefix = f"{PACKAGE}-"
    folders = [folder for folder in cache_folder.root().glob(f"{prefix}*") if _kept(folder)]
    return sorted((folder.name.removeprefix(prefix) for folder in folders), key=age)


def fetch(version: str) -> Release:
    """The release, every file of it checked, from the cache or else from the package index.

    Raises BadInput for a release that does not exist, EnvironmentFault where the index cannot be
    reached or the cache cannot be written.
    """
    check_version(version)
    folder = _folder(version)
    kept = _sound(folder)
    if kept is not None:
        return kept
    try:
        with cache_folder.workshop() as made:
            wheel = download(version, made)
            _put_in_place(_unpack(wheel, version, made / folder.name), folder)
    except BadInput:
        raise
    except _UNREADABLE as error:
        raise EnvironmentFault(
            f"subject {RELEASE}{version}: cannot be kept in the cache folder ({error})"
        ) from error
    kept = _sound(folder)
    if kept is None:
        raise EnvironmentFault(
            f"subject {RELEASE}{version}: its cache entry {folder} was changed while it was "
            "written, run again"
        )
    return kept


def opened(version: str) -> Release:
    """The release as it is in the cache, its files not checked before they are read; fetched where
    it is not there. Raises as ``fetch``.
    """
    check_version(version)
    return _kept(_folder(version)) or fetch(version)


def entries() -> list[Entry]:
    """What is in the cache, checked file by file, in the order of versions."""
    found = []
    for folder in cache_folder.root().glob(f"{PACKAGE}-*"):
        version = folder.name.removeprefix(f"{PACKAGE}-")
        kept = _kept(folder)
        files = [file for file in folder.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        trouble = "is of no use to this testbed" if kept is None else kept.trouble()
        found.append(Entry(version, folder, len(files), size, trouble))
    return sorted(found, key=lambda entry: age(entry.version))


def age(version: str) -> list[tuple[int, ...]]:
    """Sorts versions: numbers by their value, ``.post1`` after what it mends."""
    return [tuple(map(int, re.findall("[0-9]+", part))) for part in version.split(".post")]


def _folder(version: str) -> Path:
    return cache_folder.root() / f"{PACKAGE}-{version}"


def _kept(folder: Path) -> Release | None:
    """The entry in that folder, None where there is none that this testbed can use."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None
    is_this = folder.name == f"{PACKAGE}-{manifest.version}" and manifest.format == FORMAT
    return Release(folder, manifest) if is_this else None


def _sound(folder: Path) -> Release | None:
    kept = _kept(folder)
    if kept is None:
        return None
    entry = (folder, kept.manifest.sha256)
    if entry not in _SEEN_SOUND:
        if kept.trouble():
            return None
        _SEEN_SOUND.add(entry)
    return kept


def _unpack(wheel: Path, version: str, into: Path) -> Path:
    digest = _checked(wheel, version)
    files: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in _wanted(archive, version):
            raw = archive.read(member)
            if not _is_text(raw):
                continue  # no source of Python's: lifting finds that it lacks it
            path = member.filename.removeprefix(f"{PACKAGE}/")
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)
            files[path] = hashlib.sha256(raw).hexdigest()
    manifest = Manifest(version, wheel.name, digest, files, FORMAT)
    into.mkdir(exist_ok=True)
    (into / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return into


def _checked(wheel: Path, version: str) -> str:
    """The wheel's SHA-256. Raises EnvironmentFault for another wheel of a known release."""
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    known = wheels.SHA256.get(version, digest.hexdigest())
    if digest.hexdigest() != known:
        raise EnvironmentFault(
            f"subject {RELEASE}{version}: the package index delivered another wheel than the known "
            f"one (SHA-256 {digest.hexdigest()}, known is {known}): it is not used"
        )
    return known


def _wanted(archive: zipfile.ZipFile, version: str) -> list[zipfile.ZipInfo]:
    """The members to keep. Raises EnvironmentFault where they are larger than sources can be; what
    the archive says of their size is what is read of them at most.
    """
    members = archive.infolist()
    wanted = [
        member
        for member in members
        if _KEPT.fullmatch(member.filename) and ".." not in member.filename.split("/")
    ]
    sizes = [member.file_size for member in wanted]
    too_large = [
        f"{what} {size}, at most {limit}"
        for what, size, limit in (
            ("files in it:", len(members), _MEMBERS_LIMIT),
            ("bytes of its largest source:", max(sizes, default=0), _FILE_LIMIT_BYTES),
            ("bytes of its sources:", sum(sizes), _ALL_LIMIT_BYTES),
        )
        if size > limit
    ]
    if too_large:
        raise EnvironmentFault(
            f"subject {RELEASE}{version}: its wheel is too large to be one ({too_large[0]})"
        )
    return wanted


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _put_in_place(new: Path, folder: Path) -> None:
    # Two testbeds may fetch at once: the rename is the moment of truth, and the loser's copy is the
    # same.
    if folder.exists() and _sound(folder) is None:
        shutil.rmtree(folder)
    try:
        new.rename(folder)
    except OSError:
        if _sound(folder) is None:
            raise
