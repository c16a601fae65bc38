"""Whose fault an exception on a rank is: the subject's, or the testbed's own."""

import pytest

from testbed.cache import TransferController
from testbed.world.rank import by_subject


def failure(reads: str) -> AttributeError:
    """What reading a name that the controller does not have raises, out of the subject's code."""
    namespace: dict[str, object] = {}
    code = compile(f"def check(controller): return controller.{reads}", "sglang/mine.py", "exec")
    exec(code, namespace)
    check = namespace["check"]
    assert callable(check)
    with pytest.raises(AttributeError) as raised:
        check(TransferController.__new__(TransferController))
    return raised.value


def test_a_name_that_only_our_stand_in_lacks_is_no_fault_of_lifted_code() -> None:
    assert not by_subject(failure("ack_of_tomorrow"), "sglang==0.5.23")


def test_in_a_class_of_ones_own_it_is_a_mistake_like_any_other() -> None:
    assert by_subject(failure("ack_of_tomorrow"), "batched")


def test_a_missing_controller_is_the_subjects_to_deal_with() -> None:
    def check(controller: None) -> object:
        return controller.ack_write_queue  # type: ignore[attr-defined]

    code = compile("check(None)", "sglang/mine.py", "exec")
    with pytest.raises(AttributeError) as raised:
        exec(code, {"check": check})
    assert by_subject(raised.value, "sglang==0.5.23")
