"""The store that the controller holds, and the ranks' face of it."""

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from testbed.fleet.keys import Keys
from testbed.rank.remote_store import FarStore
from testbed.wire import StoreAnswer, StoreAsk, Wire

SOON = timedelta(milliseconds=50)
LATER = timedelta(seconds=60)


def ask(rank: int, op: str, *keys: str, value: bytes = b"", amount: int = 0) -> StoreAsk:
    return StoreAsk(1, rank, rank + 10, op, list(keys), value, amount)


def answer(rank: int, *, value: bytes = b"", count: int = 0) -> StoreAnswer:
    return StoreAnswer(1, rank, rank + 10, value, count)


def test_who_waits_is_answered_when_the_last_of_its_keys_is_set() -> None:
    keys = Keys()
    assert keys.ask(ask(0, "wait", "a", "b")) == []
    assert keys.ask(ask(1, "set", "a", value=b"1")) == [answer(1)]
    assert keys.ask(ask(2, "set", "b", value=b"2")) == [answer(2), answer(0, value=b"1")]
    assert keys.ask(ask(3, "set", "b", value=b"3")) == [answer(3)]


def test_who_waits_for_what_is_there_is_answered_at_once() -> None:
    keys = Keys()
    keys.ask(ask(0, "set", "a", value=b"1"))
    assert keys.ask(ask(1, "wait", "a")) == [answer(1, value=b"1")]


def test_a_counter_starts_at_nothing_and_is_read_as_text() -> None:
    keys = Keys()
    assert keys.ask(ask(0, "wait", "n")) == []
    assert keys.ask(ask(1, "add", "n", amount=2)) == [
        answer(1, count=2),
        answer(0, value=b"2"),
    ]
    assert keys.ask(ask(1, "add", "n", amount=-5)) == [answer(1, count=-3)]


def test_a_check_says_whether_all_are_there() -> None:
    keys = Keys()
    keys.ask(ask(0, "set", "a"))
    assert keys.ask(ask(1, "check", "a")) == [answer(1, count=1)]
    assert keys.ask(ask(1, "check", "a", "b")) == [answer(1, count=0)]


def test_an_operation_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 3 asks its store for 'drop'"):
        Keys().ask(ask(3, "drop", "a"))


@pytest.fixture
def store() -> Iterator[FarStore]:
    """A store whose other end a thread serves as host and controller do."""
    ours, theirs = socket.socketpair()
    wire, keys = Wire(theirs), Keys()

    def serve() -> None:
        while (asked := wire.receive()) is not None:
            for due in keys.ask(asked):
                wire.send(due)

    serving = threading.Thread(target=serve)
    serving.start()
    yield FarStore(ours, 1, 0, SOON)
    ours.close()
    serving.join()
    theirs.close()


def test_torchs_own_prefix_store_works_on_it(store: FarStore) -> None:
    prefixed = PrefixStore("group", store)
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    assert prefixed.check(["key"])
    assert not prefixed.check(["key", "other"])
    assert prefixed.add("count", 3) == 3
    prefixed.wait(["key", "count"])
    assert store.get("group/count") == b"3"


def test_a_key_that_nobody_sets_is_given_up_and_its_late_answer_is_of_no_other_call(
    store: FarStore,
) -> None:
    with pytest.raises(dist.DistStoreError, match=r"nobody set \['never'\] in time"):
        store.get("never")
    store.set_timeout(LATER)
    store.set("never", b"late")  # its waiter's answer comes first now
    store.set("other", b"value")
    assert store.get("other") == b"value"


def test_without_a_host_a_call_ends(store: FarStore) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(ConnectionError), ours:
        FarStore(ours, 1, 0, LATER).check(["a"])
