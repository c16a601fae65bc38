"""``python -m cases.peers [WORD]``: run every program whose name has the word, print the table;
``--page`` runs all of them and writes ``docs/peers.md`` as well.
"""

import sys
from collections.abc import Iterator

from cases.peers import page
from cases.peers.catalog import PEERS
from cases.peers.host import HERE
from cases.peers.table import SUITE_NAME, Row, measure, suite, table
from testbed.console import output
from testbed.fleet import Fleet
from testbed.model.exit_status import NOT_AS_EXPECTED
from testbed.sessions.store import DEFAULT_ROOT, RunStore

_WORLD = 4
_ROOT = DEFAULT_ROOT / "peers"


def main() -> int:
    """Returns the exit status: 0 where everything is as it must be."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "--page":
        return output.ended("peers", lambda: _run("", write_page=True))
    return output.ended("peers", lambda: _run(word))


def _run(word: str, *, write_page: bool = False) -> int:
    store = RunStore(_ROOT)
    rows = []
    with Fleet(_WORLD, hosts=HERE) as fleet:
        for row in _rows(word, fleet, store):
            rows.append(row)
            mark = "skipped" if row.skipped else row.wrong or "as it must be"
            print(f"{row.program}, {row.ranks} ranks, {row.broken or 'sound'}: {mark}", flush=True)
    print()
    print(table(rows))
    wrong = sum(bool(row.wrong) for row in rows)
    print(f"\n{len(rows)} lines, {wrong} not as they must be; kept in {store.folder}")
    if write_page:
        print(page.write(rows))
    return NOT_AS_EXPECTED if wrong else 0


def _rows(word: str, fleet: Fleet, store: RunStore) -> Iterator[Row]:
    for peer in PEERS:
        if word in peer.name:
            yield from measure(peer, fleet, store)
    if word in SUITE_NAME:
        yield from suite(fleet, store)


if __name__ == "__main__":
    sys.exit(main())
