"""The figures of copies between the pools, on the fake GPU, whose memcpy takes COPY_MS each."""

import pytest

from testbed.device import CudaDevice, driver
from testbed.measure import bench_copies
from tests.fake_cuda import COPY_MS, FakeCuda, ManualTime


def test_both_ways_and_all_sizes_are_measured_by_the_devices_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Still(FakeCuda):
        def __init__(self, index: int) -> None:
            super().__init__(index, ManualTime())

    monkeypatch.setattr(driver, "TorchCuda", Still)

    costs = list(bench_copies.measure(CudaDevice(0), rounds=1))

    assert [(cost.way, cost.pages) for cost in costs] == [
        (way, pages) for way in ("write", "load") for pages in bench_copies.PAGES
    ]
    for cost in costs:
        assert cost.ms == pytest.approx(cost.pages * bench_copies.LAYERS * COPY_MS)
        # 64 KiB a copy, in COPY_MS.
        assert cost.gib_per_s == pytest.approx((64 / (1 << 20)) / (COPY_MS / 1e3))


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_copies, "why_none", lambda: "this machine has no GPU (none)")

    assert bench_copies.main([]) == 3
    assert capsys.readouterr().err == "bench-copies: this machine has no GPU (none)\n"
