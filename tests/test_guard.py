"""Whether a buffer is left alone until its operation was waited for."""

from collections.abc import Callable

import pytest
import torch

from testbed.recorder.guard import Awaited, Guard, writes

Use = Callable[[torch.Tensor], object]


def seen(use: Use) -> list[str]:
    """What is told of ``use`` before the wait."""
    buffer, touched = torch.arange(4, dtype=torch.int32), list[str]()
    guard = Guard([buffer], [], touched.append)
    use(buffer)
    guard.release()
    assert type(buffer) is torch.Tensor
    return touched


@pytest.mark.parametrize(
    "read",
    [
        lambda buffer: buffer.tolist(),
        lambda buffer: buffer[0].item(),
        lambda buffer: int(buffer[1]),
        lambda buffer: bool((buffer > 2).any()),
        lambda buffer: buffer.clone(),
        lambda buffer: torch.zeros(4, dtype=torch.int32).copy_(buffer),
        lambda buffer: torch.cat([buffer, buffer]),
        lambda buffer: f"{buffer}",
    ],
)
def test_a_read_of_what_has_not_come_is_told_once(read: Use) -> None:
    assert seen(read) == ["read"]


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer: buffer.fill_(1),
        lambda buffer: buffer[1:].zero_(),
        lambda buffer: buffer.__setitem__(0, 7),
        lambda buffer: torch.add(torch.ones(4, dtype=torch.int32), 1, out=buffer),
    ],
)
def test_a_write_into_a_buffer_in_use_is_told(write: Use) -> None:
    assert seen(write) == ["written"]


@pytest.mark.parametrize(
    "use",
    [
        lambda buffer: (buffer.shape, buffer.numel(), buffer.dtype, len(buffer)),
        lambda buffer: buffer.data_ptr(),
        lambda buffer: (buffer[1:], buffer.view(2, 2), buffer.detach()),
        lambda buffer: torch.empty_like(buffer),
        lambda buffer: buffer.new_zeros(3),
        lambda buffer: torch.ones(4).tolist(),
    ],
)
def test_what_needs_no_contents_is_nobodys_business(use: Use) -> None:
    assert seen(use) == []


def test_after_its_release_buffer_and_views_are_plain_tensors_again() -> None:
    buffer, touched = torch.arange(4), list[str]()
    guard = Guard([buffer], [], touched.append)
    view = buffer[1:]
    assert isinstance(view, Awaited)
    guard.release()
    guard.release()

    assert view.tolist() == [1, 2, 3]
    buffer.fill_(0)
    assert (type(view), touched) == (torch.Tensor, [])


def test_tensors_of_inference_mode_and_parameters_are_left_as_they_are() -> None:
    with torch.inference_mode():
        assert writes(torch.zeros(2).fill_(1)) == 0
    parameter = torch.nn.Parameter(torch.zeros(2))
    Guard([parameter], [parameter], pytest.fail).release()
    assert type(parameter) is torch.nn.Parameter


def test_a_view_that_is_sent_is_judged_by_its_own_bytes() -> None:
    whole, touched = torch.arange(6.0), list[str]()
    guard = Guard([], [whole[:3]], touched.append)
    whole[3:].zero_()
    guard.release()
    assert touched == []

    guard = Guard([], [whole[:3]], touched.append)
    whole[2:].fill_(7)
    guard.release()
    assert touched == ["written"]


def test_a_result_beside_the_input_in_one_memory_is_the_operation_s_own_writing() -> None:
    whole, touched = torch.arange(6.0), list[str]()
    alias = whole.numpy()
    guard = Guard([whole], [whole[:3]], touched.append)
    alias[:3] = 9  # as the backend writes: past torch's count
    guard.release()
    assert touched == []


def test_one_that_is_forgotten_reports_nothing_and_is_its_owners_again() -> None:
    buffer = torch.arange(4)
    guard = Guard([buffer], [], pytest.fail)
    guard.forget()
    buffer.zero_()
    guard.release()
    assert type(buffer) is torch.Tensor
