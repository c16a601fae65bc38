"""Who waits for whom: the proof of a deadlock, on hand-written histories of two to four ranks."""

from testbed.analysis.wait_graph import prove
from testbed.model.events import Block, Enter, Event, Exit, Final, Group, Left, Sync
from testbed.model.topology import Topology

TP2 = Topology(1, 2, 1)
PP2 = Topology(2, 1, 1)
FINAL = Final(9, 0, {}, {}, [0, 0], [0, 0], {}, 0)


def reduce(group: str, ordinal: int) -> Enter:
    return Enter(0, 0, "all_reduce", group, ordinal, -1, -1, "MIN", "int32", 1, [], "agree")


def message(op: str, group: str, ordinal: int, peer: int, tag: int = 7) -> Enter:
    return Enter(0, 0, op, group, ordinal, peer, tag, "", "int32", 1, [], "pass_down")


OUT = Exit(0, 0, [])


def test_a_rank_that_left_its_loop_never_comes_to_a_collective() -> None:
    events: dict[int, list[Event]] = {0: [reduce("tp[pp0]", 0)], 1: [FINAL]}

    proof = prove(events, TP2)

    assert proof is not None
    assert proof.ranks == (0,)
    assert proof.ended == (1,)
    assert "all_reduce #0 of tp[pp0]" in proof.told()


def test_two_ranks_in_different_calls_hold_each_other_across_a_collective_and_a_pipe() -> None:
    topology = Topology(2, 2, 1)
    events: dict[int, list[Event]] = {
        0: [reduce("tp[pp0]", 0)],
        1: [message("recv", "pp[tp1]", 0, 3)],
        2: [FINAL],
        3: [message("recv", "pp[tp1]", 0, 1)],
    }

    proof = prove(events, topology)

    assert proof is not None
    assert proof.ranks == (1, 3)
    assert [wait.rank for wait in proof.behind] == [0]
    assert proof.told().endswith("stuck behind: " + str(proof.behind[0]))


def test_of_several_ranks_that_left_all_are_named() -> None:
    events: dict[int, list[Event]] = {0: [reduce("tp[pp0]", 0)], 1: [FINAL], 2: [FINAL]}

    proof = prove(events, Topology(1, 3, 1))

    assert proof is not None
    assert proof.told().endswith(
        "for rank 1, rank 2; rank 1 left its loop without it, rank 2 left its loop without it"
    )


def test_a_message_under_way_is_no_wait() -> None:
    events: dict[int, list[Event]] = {
        0: [message("isend", "pp[tp0]", 0, 1), OUT, FINAL],
        1: [message("recv", "pp[tp0]", 0, 0)],
    }
    assert prove(events, PP2) is None


def test_the_wait_on_a_send_waits_for_the_receive_of_that_very_message() -> None:
    sent: list[Event] = [message("isend", "pp[tp0]", 0, 1), OUT, message("wait", "pp[tp0]", 0, 1)]
    received: list[Event] = [message("recv", "pp[tp0]", 0, 0), OUT]

    assert prove({0: sent, 1: [FINAL]}, PP2) is not None
    assert prove({0: sent, 1: [*received, FINAL]}, PP2) is None


def test_a_collective_that_everybody_entered_is_no_wait() -> None:
    assert prove({0: [reduce("tp[pp0]", 0)], 1: [reduce("tp[pp0]", 0)]}, TP2) is None


def test_a_running_peer_may_still_come() -> None:
    assert prove({0: [reduce("tp[pp0]", 0)], 1: []}, TP2) is None


def test_an_event_and_a_local_queue_wait_for_nobody_who_can_be_named() -> None:
    for stuck in (Sync(0, 0, "w0", -1), Block(0, 0, "backup")):
        assert prove({0: [stuck], 1: [message("recv", "pp[tp0]", 0, 0)]}, PP2) is None


def test_other_tags_are_other_pipes() -> None:
    events: dict[int, list[Event]] = {
        0: [message("isend", "pp[tp0]", 0, 1, tag=1), OUT, FINAL],
        1: [message("recv", "pp[tp0]", 0, 0, tag=2)],
    }
    assert prove(events, PP2) is not None


def test_a_group_of_the_subjects_own_has_the_members_that_its_rank_takes_it_for() -> None:
    topology = Topology(1, 3, 1)
    pair: list[Event] = [Group(0, 0, "group1[0, 1]", [0, 1]), reduce("group1[0, 1]", 0)]

    proof = prove({0: pair, 1: [], 2: [FINAL]}, topology)
    assert proof is None  # rank 2 has ended, but nobody waits for it

    proof = prove({0: pair, 1: [FINAL], 2: [FINAL]}, topology)
    assert proof is not None
    assert [wait.waits_for for wait in proof.cycle] == [(1,)]


def test_the_wait_on_a_receive_waits_for_its_sender_and_names_its_tag() -> None:
    posted: list[Event] = [message("irecv", "pp[tp0]", 0, 0), OUT]
    waiting: list[Event] = [*posted, message("wait_irecv", "pp[tp0]", 0, 0)]

    proof = prove({0: [FINAL], 1: waiting}, PP2)

    assert proof is not None
    assert "rank 1 waits in wait_irecv #0 of pp[tp0] tag 7" in proof.told()
    assert prove({0: [message("isend", "pp[tp0]", 0, 1), OUT], 1: waiting}, PP2) is None


def test_over_nccl_a_receive_takes_the_next_message_whatever_its_tag() -> None:
    def exchange(group: str) -> dict[int, list[Event]]:
        sent = message("isend", group, 0, 1, tag=1)
        return {0: [sent, OUT, FINAL], 1: [message("recv", group, 0, 0, tag=2)]}

    assert prove(exchange("pp[tp0]@nccl"), PP2) is None
    assert prove(exchange("pp[tp0]"), PP2) is not None


def test_a_group_over_nccl_has_the_members_of_its_namesake() -> None:
    topology = Topology(2, 2, 1)
    events: dict[int, list[Event]] = {
        0: [reduce("tp[pp0]@nccl", 0)],
        1: [FINAL],
        2: [],
        3: [],
    }

    proof = prove(events, topology)

    assert proof is not None
    assert proof.ended == (1,)
    assert proof.cycle[0].waits_for == (1,)


# Threads, receives from any source, ranks that do not exist


def on_thread(event: Enter, thread: int) -> Enter:
    return event._replace(thread=thread)


def test_another_thread_that_uses_the_group_may_still_come() -> None:
    used: list[Event] = [on_thread(reduce("world", 0), 1), Exit(0, 0, [], 1)]
    waits: list[Event] = [reduce("world", 0), OUT, reduce("world", 1)]
    stuck = reduce("tp[pp0]", 0)

    assert prove({0: waits, 1: [*used, stuck]}, TP2) is None  # its thread 1 idles
    both = [*used, on_thread(reduce("tp[pp0]", 1), 1), stuck]
    assert prove({0: waits, 1: both}, TP2) is not None


def test_a_thread_alone_that_can_never_move_is_no_deadlock() -> None:
    events: dict[int, list[Event]] = {0: [on_thread(reduce("world", 0), 2)], 1: [FINAL]}

    assert prove(events, TP2) is None


def test_a_receive_from_any_source_is_dead_only_if_every_sender_is() -> None:
    topology = Topology(1, 3, 1)
    anybody = message("recv", "world", 0, -1)

    assert prove({0: [anybody], 1: [FINAL], 2: []}, topology) is None
    proof = prove({0: [anybody], 1: [FINAL], 2: [FINAL]}, topology)

    assert proof is not None
    assert "from any source" in proof.told()
    assert "for any of rank 1, rank 2" in proof.told()


def test_a_message_for_any_source_that_is_under_way_is_no_wait() -> None:
    sent = message("send", "world", 0, 0)
    events: dict[int, list[Event]] = {0: [message("recv", "world", 0, -1)], 1: [sent, OUT, FINAL]}

    assert prove(events, TP2) is None
    taken: list[Event] = [message("recv", "world", 0, -1), Exit(0, 0, [], 0, False, 1)]
    assert prove({**events, 0: [*taken, message("recv", "world", 1, -1)]}, TP2) is not None


def test_a_call_with_a_timeout_of_its_own_is_never_dead() -> None:
    events: dict[int, list[Event]] = {0: [reduce("world", 0)._replace(timed=True)], 1: [FINAL]}

    assert prove(events, TP2) is None


def test_an_operation_that_an_exception_left_is_no_wait() -> None:
    events: dict[int, list[Event]] = {0: [reduce("world", 0), Left(0, 0, "ValueError")], 1: [FINAL]}

    assert prove(events, TP2) is None


def test_a_rank_that_does_not_exist_never_comes() -> None:
    proof = prove({0: [message("send", "world", 0, 99)], 1: []}, TP2)

    assert proof is not None
    assert (proof.ended, proof.unknown) == ((), (99,))
    assert proof.told().endswith("rank 99 does not exist")


def test_of_a_group_of_unknown_members_nobody_is_missing() -> None:
    assert prove({0: [reduce("somewhere", 0)], 1: [FINAL]}, TP2) is None


def test_a_deadlock_names_the_functions_that_called_not_the_helper_alone() -> None:
    called = reduce("world", 0)._replace(
        caller="check_hicache_events>writing_check>_all_reduce", site="cache.py:8"
    )
    proof = prove({0: [called], 1: [FINAL]}, TP2)

    assert proof is not None
    assert "(writing_check>_all_reduce at cache.py:8, step 0)" in proof.told()
