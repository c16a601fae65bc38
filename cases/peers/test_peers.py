"""Programs of all kinds on recorded ranks: a part of what ``make test-peers`` runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.peers.catalog import PEERS, Peer
from cases.peers.host import HERE
from cases.peers.table import SUITE_NEEDS, lacks, measure, suite
from testbed.fleet import Fleet
from testbed.sessions.store import RunStore

_SOME = tuple(peer for peer in PEERS if peer.in_tests)
_SUITE_PART = ("test_all_reduce_sum", "test_send_recv", "test_isend", "test_new_subgroups")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(4, hosts=HERE) as made:
        yield made


def named(peer: Peer) -> str:
    return f"{peer.name}-{peer.ranks}".replace(" ", "-")


@pytest.mark.parametrize("peer", _SOME, ids=named)
def test_a_sound_program_is_left_alone_and_a_broken_one_named(
    peer: Peer, fleet: Fleet, tmp_path: Path
) -> None:
    rows = list(measure(peer, fleet, RunStore(tmp_path), breaks=1))

    assert [(row.broken, row.wrong, row.told) for row in rows if row.wrong] == []


@pytest.mark.skipif(bool(lacks(SUITE_NEEDS)), reason=lacks(SUITE_NEEDS) or "there")
def test_torchs_own_tests_go_as_they_do_bare(fleet: Fleet, tmp_path: Path) -> None:
    rows = list(suite(fleet, RunStore(tmp_path), _SUITE_PART, breaks=1))

    assert [(row.program, row.wrong, row.told) for row in rows if row.wrong] == []
