"""SGLang releases from the package index: fetched once, kept as sources, never imported.

A release is kept under the user's cache folder as the Python files of its wheel that lifting may
read, with ``source.json`` naming the wheel and the SHA-256 of it and of every file. The same wheel
is asked for on every machine, whatever its own Python: only its sources are used.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from testbed.errors import BadInput, EnvironmentFault
from testbed.subjects.sglang.names import PACKAGE, RELEASE, check_version

MANIFEST = "source.json"
FETCH_TIMEOUT_S = 600

_KEPT = re.compile(
    r"sglang/srt/(mem_cache/.*|managers/.*|distributed/.*|utils/.*|observability/.*|session/.*|[^/]*)\.py"
)
_WHEEL_TAGS = (
    "--python-version=3.11",
    "--implementation=cp",
    "--abi=cp311",
    "--abi=none",
    "--platform=manylinux_2_34_x86_64",
    "--platform=manylinux2014_x86_64",
)


class Manifest(msgspec.Struct, frozen=True):
    """What ``source.json`` holds. files: path inside the package -> SHA-256 (hexadecimal)."""

    version: str
    wheel: str
    sha256: str
    files: dict[str, str]


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
        file = self.folder / path
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise EnvironmentFault(
                f"{self.told(path)}: cannot be read from the cache ({error.strerror}); delete its "
                f"folder {self.folder.name} there and run again"
            ) from error
        if hashlib.sha256(raw).hexdigest() != self.manifest.files.get(path):
            raise EnvironmentFault(
                f"{self.told(path)}: the cached file was changed; delete its folder "
                f"{self.folder.name} there and run again"
            )
        return raw.decode()

    def told(self, path: str) -> str:
        """How tracebacks and messages name a file: ``sglang-0.5.19/srt/mem_cache/...``."""
        return f"{PACKAGE}-{self.version}/{path}"


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/hicache-testbed``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hicache-testbed"


def cached() -> list[str]:
    """Versions that the cache holds, oldest first."""
    entries = cache_root().glob(f"{PACKAGE}-*/{MANIFEST}")
    versions = [entry.parent.name.removeprefix(f"{PACKAGE}-") for entry in entries]
    return sorted(versions, key=_age)


def _age(version: str) -> list[tuple[int, str, int]]:
    # Word by word: a pre-release comes before its release, a post-release after it.
    words = re.findall(r"([a-z]*)(\d+)", version)
    order = {"dev": -3, "a": -2, "b": -2, "rc": -1, "": 1, "post": 2}
    return [(order.get(word, 0), word, int(number)) for word, number in words] + [(0, "", 0)]


def fetch(version: str) -> Release:
    """The release, from the cache or else from the package index by pip.

    Raises BadInput for a release that does not exist, EnvironmentFault where the index cannot be
    reached or the cache cannot be written.
    """
    check_version(version)
    folder = cache_root() / f"{PACKAGE}-{version}"
    kept = _kept(folder)
    if kept is not None:
        return kept
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            new = _unpack(_download(version, Path(made)), version, Path(made) / folder.name)
            _put_in_place(new, folder)
    except OSError as error:
        raise EnvironmentFault(
            f"subject sglang=={version}: cannot be kept in the cache folder ({error})"
        ) from error
    kept = _kept(folder)
    if kept is None:
        raise EnvironmentFault(f"subject sglang=={version}: its cache entry vanished, run again")
    return kept


def _kept(folder: Path) -> Release | None:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None
    return Release(folder, manifest)


def _download(version: str, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--retries=2", *_WHEEL_TAGS]
    command += ["--dest", str(into), f"{PACKAGE}=={version}"]
    try:
        pip = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"subject sglang=={version}: the package index did not deliver in {FETCH_TIMEOUT_S} s"
        ) from error
    wheels = sorted(into.glob("*.whl"))
    if pip.returncode == 0 and wheels:
        return wheels[0]
    raise _refusal(version, pip.stderr)


def _refusal(version: str, said: str) -> Exception:
    offered = re.search(r"\(from versions: ([^)]*)\)", said)
    if offered is not None and offered[1] != "none":
        newest = ", ".join(offered[1].split(", ")[-3:])
        return BadInput(
            f"subject sglang=={version}: no such release in the package index (newest: {newest})"
        )
    errors = [line for line in said.splitlines() if line.strip()]
    why = errors[-1].strip() if errors else "pip said nothing"
    if offered is not None:
        why = "the package index cannot be reached or has no sglang"
    return EnvironmentFault(
        f"subject sglang=={version}: cannot be fetched and is not in the cache ({why}); "
        "fetch it once on a machine with network, or choose another subject"
    )


def _unpack(wheel: Path, version: str, into: Path) -> Path:
    files: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if _KEPT.fullmatch(member) is None or ".." in member.split("/"):
                continue
            raw = archive.read(member)
            path = member.removeprefix(f"{PACKAGE}/")
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)
            files[path] = hashlib.sha256(raw).hexdigest()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    manifest = Manifest(version=version, wheel=wheel.name, sha256=digest, files=files)
    (into / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return into


def _put_in_place(new: Path, folder: Path) -> None:
    # Two testbeds may fetch at once: the rename is the moment of truth, and the loser's copy is the
    # same.
    if folder.exists() and _kept(folder) is None:
        shutil.rmtree(folder)
    try:
        new.rename(folder)
    except OSError:
        if _kept(folder) is None:
            raise
