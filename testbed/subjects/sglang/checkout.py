"""A checkout of SGLang as a source: a folder that holds the ``sglang`` package, or the package.

Files are read once, when lifting first needs them. What a record says of a checkout: its folder,
the commit it is at where git knows one, and a SHA-256 over the files that were read.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from testbed.model.errors import BadInput, EnvironmentFault
from testbed.subjects.sglang.names import CHECKOUT, PACKAGE

_MARK = Path("srt")
_PLACES = (".", PACKAGE, f"python/{PACKAGE}")
_GIT = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


class Checkout:
    """The package at ``package``, named ``sglang@<folder>`` as its user wrote it."""

    def __init__(self, folder: str, package: Path) -> None:
        self._folder = folder
        self._package = package
        self._texts: dict[str, str] = {}

    @property
    def name(self) -> str:
        """``sglang@FOLDER``."""
        return f"{CHECKOUT}{self._folder}"

    def has(self, path: str) -> bool:
        """Whether the package has that file."""
        return (self._package / path).is_file()

    def read(self, path: str) -> str:
        """Text of one file, as it was when first read. Raises EnvironmentFault."""
        if path not in self._texts:
            try:
                # As Python reads it, which passes over a mark at the start.
                self._texts[path] = (self._package / path).read_text(encoding="utf-8-sig")
            except OSError as error:
                raise EnvironmentFault(f"{self.told(path)}: cannot be read ({error})") from error
            except UnicodeDecodeError as error:
                raise BadInput(
                    f"{self.told(path)}: is no UTF-8 text (byte {error.start}): mend it"
                ) from error
        return self._texts[path]

    def mentioning(self, word: str) -> Iterator[str]:
        """Texts of all files of the package, read or not, in which ``word`` occurs."""
        for file in sorted(self._package.rglob("*.py")):
            text = file.read_text(encoding="utf-8", errors="replace")
            if word in text:
                yield text

    def told(self, path: str) -> str:
        """``sglang@/abs/folder/srt/mem_cache/...``."""
        return f"{CHECKOUT}{self._package}/{path}"

    def versions(self) -> dict[str, str]:
        """Folder of the package, commit ("" outside git; ends in "-dirty" if changed since), and
        SHA-256 over the paths and texts read.
        """
        digest = hashlib.sha256()
        for path, text in sorted(self._texts.items()):
            digest.update(f"{path}\0{len(text)}\0{text}".encode())
        return {
            "sglang-folder": str(self._package),
            "sglang-commit": _commit(self._package),
            "sglang-sha256": digest.hexdigest(),
        }


def find(folder: str) -> Checkout:
    """The checkout in ``folder``, which is the package, holds it, or is the whole repository.
    Raises BadInput.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise BadInput(f"subject {CHECKOUT}{folder}: is no folder")
    for place in _PLACES:
        package = root / place
        if (package / _MARK).is_dir():
            return Checkout(folder, package.resolve())
    raise BadInput(
        f"subject {CHECKOUT}{folder}: holds no {PACKAGE} package; give the folder that has "
        f"{PACKAGE}/srt in it"
    )


def _commit(package: Path) -> str:
    try:
        told = subprocess.run(
            ["git", "-C", str(package), *_GIT], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""
