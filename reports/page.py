"""``index.html`` of a session: one file that needs no network, with all cases and their timelines.

Each case's piece is in it compressed; the page unpacks the one that is looked at. A thousand cases
stay a file that a browser opens at once.
"""

import base64
import gzip
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from reports.case_page import case_page
from reports.perfetto import TRACE_FILE, write_trace
from reports.results import Row, divergence
from reports.table import tally
from reports.templates import render, text_of
from testbed.model import record
from testbed.model.verdict import Outcome
from testbed.sessions.result import LOST, judged

PAGE_FILE = "index.html"

# Fewer cases than this are done sooner than other processes have started.
_FEW, _CHUNK, _MOST_WORKERS = 100, 8, 8


class Entry(NamedTuple):
    """One line of the table. key: names it in the page. packed: its piece, empty if it has none."""

    key: str
    row: Row
    first: str
    packed: str


def write_page(rows: Sequence[Row], world: int, folder: Path) -> Path:
    """Write the page of the session in ``folder``, and beside each record its trace.

    world: hosts of its fleet. Records are read from disk and judged again. Raises OSError, and
    BadInput if a record is broken.
    """
    path = folder / PAGE_FILE
    path.write_text(_page(_entries(rows, folder), world, folder), encoding="utf-8")
    return path


def _entries(rows: Sequence[Row], folder: Path) -> list[Entry]:
    """In order. A case takes some 20 ms of work, a session has hundreds: many are shared out."""
    each = partial(_entry, folder=folder.absolute())
    workers = min(os.cpu_count() or 1, _MOST_WORKERS)
    if len(rows) < _FEW or workers == 1:
        return [each(row) for row in rows]
    # Forked: what is imported here takes a fresh process seconds. The workers run no torch.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(each, rows, chunksize=_CHUNK))


def _entry(row: Row, folder: Path) -> Entry:
    first = divergence(row)
    one_line = first.one_line() if first else ""
    if row["path"] == LOST:
        return Entry(f"{row['id']}-lost", row, one_line, "")
    # Not row["path"]: what a test's working folder was then, may not be the one of now.
    path = folder / "runs" / Path(row["path"]).name
    result = judged(record.load(path), path)
    write_trace(result.record, path)
    trace = f"runs/{quote(path.name)}/{TRACE_FILE}"
    return Entry(path.name, row, one_line, packed(case_page(row, result, trace)))


def packed(html: str) -> str:
    """Compressed, as text."""
    return base64.b64encode(gzip.compress(html.encode(), 6, mtime=0)).decode()


def _page(entries: list[Entry], world: int, folder: Path) -> str:
    rows = [entry.row for entry in entries]
    return render(
        "index.html",
        title=folder.name,
        entries=entries,
        tally=tally(rows),
        world=world,
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        unexpected=sum(not row["as_expected"] for row in rows),
        verdicts=_counts(row["verdict"] for row in rows),
        subjects=_counts(row["subject"] for row in rows),
        topologies=_counts(row["topology"] for row in rows),
        style=text_of("page.css") + text_of("timeline.css"),
        script=text_of("page.js"),
    )


def _counts(values: Iterator[str]) -> list[tuple[str, int]]:
    counted: Counter[str] = Counter(values)
    order: dict[Any, int] = {str(outcome): place for place, outcome in enumerate(Outcome)}
    return sorted(counted.items(), key=lambda one: (order.get(one[0], -1), one[0]))
