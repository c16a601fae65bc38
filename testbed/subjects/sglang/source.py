"""What lifting reads from: the files of one ``sglang`` package, wherever they come from."""

from typing import Protocol


class Source(Protocol):
    """The Python files of one ``sglang`` package. Paths are relative to the package's folder, such
    as ``srt/environ.py``.
    """

    @property
    def name(self) -> str:
        """The subject's name without its cache class: ``sglang==0.5.19``, ``sglang@FOLDER``."""

    def has(self, path: str) -> bool:
        """Whether there is such a file."""

    def read(self, path: str) -> str:
        """Text of one file. Raises EnvironmentFault if it cannot be read or is not what it was."""

    def told(self, path: str) -> str:
        """How tracebacks and messages name a file; begins with ``sglang``."""

    def versions(self) -> dict[str, str]:
        """What a record says of where the code came from. Asked once lifting has read its files."""
