"""``make nightly``: the long targets one after the other, one summary at the end.

``python -m testbed.measure.nightly [--out DIR]``. A target that fails keeps none of the others from
running. DIR/<time>/ gets a log per target and ``summary.md``, which names the reports that were
made; DIR/latest points there. Exit status 1 if a target failed.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.console import output
from testbed.measure.parts import Part, all_well, run_part, table
from testbed.model.exit_status import AS_EXPECTED, NOT_AS_EXPECTED

TARGETS = ("test-nccl", "test-bugs", "matrix", "bench-pp")
DEFAULT_OUT = Path("reports/out/nightly")
REPORTS = Path("reports/out")
LATEST = "latest"

_PAGES = ("index.html", "summary.md", "*.html", "*.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Run every target; returns the exit status."""
    return output.ended("nightly", lambda: _run_all(argv))


def _run_all(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="nightly", description="The long targets, one by one.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR")
    options = parser.parse_args(argv)
    folder: Path = options.out / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    parts: list[Part] = []
    began = time.time()
    for target in TARGETS:
        # Variables given to `make nightly` are in MAKEFLAGS, and so hold for these, too.
        command = ["make", "--no-print-directory", target]
        parts.append(run_part(target, command, folder / f"{target}.log"))
        print(parts[-1].one_line(), flush=True)
    summary = told(parts, made_since(REPORTS, began))
    (folder / "summary.md").write_text(summary)
    _point_latest(options.out, folder.name)
    print(f"\n{summary}")
    return AS_EXPECTED if all_well(parts) else NOT_AS_EXPECTED


def told(parts: Sequence[Part], pages: Sequence[Path]) -> str:
    """The summary, in Markdown."""
    failed = [part.name for part in parts if part.state == "failed"]
    skipped = [part.name for part in parts if part.state == "skipped"]
    heading = f"failed: {', '.join(failed)}" if failed else "nothing failed"
    also = f"; skipped: {', '.join(skipped)}" if skipped else ""
    logs = [f"- {part.name}: {part.log}" for part in parts]
    reports = [f"- {page}" for page in pages] or ["- none"]
    sections = [
        f"# Nightly run of {time.strftime('%Y-%m-%d %H:%M')}: {heading}{also}",
        table(parts),
        "\n".join(["Reports:", "", *reports]),
        "\n".join(["Logs:", "", *logs]),
    ]
    return "\n\n".join(sections) + "\n"


def made_since(root: Path, began_s: float) -> list[Path]:
    """The page to read of every folder below ``root`` in which one was written since then.

    Sessions have ``index.html`` or ``summary.md``; single pages lie at the top. Links are not
    followed.
    """
    folders = [root, *root.glob("*"), *root.glob("*/*")]
    found: list[Path] = []
    for folder in folders:
        if folder.is_symlink() or folder.parent.is_symlink() or not folder.is_dir():
            continue
        pages = [page for glob in _PAGES for page in sorted(folder.glob(glob))]
        new = [page for page in pages if page.stat().st_mtime >= began_s]
        found += dict.fromkeys(new if folder == root else new[:1])
    return found


def _point_latest(out: Path, name: str) -> None:
    link = out / f".{LATEST}.{os.getpid()}"
    link.symlink_to(name)
    link.replace(out / LATEST)


if __name__ == "__main__":
    sys.exit(main())
