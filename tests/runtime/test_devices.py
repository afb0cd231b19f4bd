"""The device sheets: complete, sourced, and consistent with what the hardware can do in a clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch

from tilewright.runtime import devices
from tilewright.runtime.devices import Device

NAMES = ["a100", "b200", "h100", "h200", "l40s", "mi300x", "rtx4090"]

#: dense operations of a multiprocessor in a clock: (bfloat16 matrix, float32 vector)
IN_A_CLOCK = {
    "a100": (2048, 128),
    "b200": (8192, 256),
    "h100": (4096, 256),
    "h200": (4096, 256),
    "l40s": (1024, 256),
    "mi300x": (2048, 256),
    "rtx4090": (512, 256),
}


@pytest.fixture
def fresh() -> Iterator[None]:
    devices._of_gpu.cache_clear()
    yield
    devices._of_gpu.cache_clear()


def test_the_sheets_that_there_are() -> None:
    assert Device.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_its_source(name: str) -> None:
    device = Device.named(name)
    figures = {f.name for f in fields(Device)} - {"name", "title", "backend", "sources", "model"}
    assert set(device.sources) == figures
    assert all(len(source) > 10 for source in device.sources.values())
    # a document has a year; what the driver or a tool reports, or a manual of the architecture, is named as that
    assert all("20" in source or "report" in source or "on the device" in source for source in device.sources.values())


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_in_their_units(name: str) -> None:
    device = Device.named(name)
    assert 1_000 < device.clock_mhz < 3_000
    assert 0.5 < device.memory_tbps < 10
    assert 2**34 < device.memory_bytes < 2**38
    assert 2**25 <= device.l2_bytes < 2**28
    assert 65_536 <= device.smem_per_block <= device.smem_per_sm <= 233_472
    assert device.threads_per_sm % device.warp_size == 0
    assert device.match
    assert {"bfloat16", "float16", "tf32", "float32", "float64", "int8"} <= set(device.peak_tflops)


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_dense_and_what_the_clock_allows(name: str) -> None:
    # sparse rates would be twice these. Hopper and Blackwell quote tensor rates below the highest clock: 8% at most
    device = Device.named(name)
    matrix, vector = IN_A_CLOCK[name]
    clocks = device.sms * device.clock_mhz * 1e6 / 1e12
    assert device.peak_tflops["bfloat16"] == pytest.approx(matrix * clocks, rel=0.08)
    assert device.peak_tflops["float32"] == pytest.approx(vector * clocks, rel=0.02)
    assert device.peak_tflops["float16"] == device.peak_tflops["bfloat16"]
    assert device.peak_tflops["tf32"] == pytest.approx(device.peak_tflops["bfloat16"] / 2, rel=0.03)


def test_no_two_sheets_claim_one_gpu() -> None:
    claimed = [name for sheet in NAMES for name in Device.named(sheet).match]
    assert len(claimed) == len(set(claimed))


def test_the_h200() -> None:
    device = Device.named("h200")
    assert (device.sms, device.l2_bytes, device.smem_per_block) == (132, 62914560, 232448)
    assert (device.arch, device.backend, device.warp_size) == (90, "cuda", 32)
    assert device.memory_tbps == 4.8
    assert device.match == ("NVIDIA H200",)
    assert device.peak(torch.bfloat16) == 989.4


def test_peaks_of_float32_by_precision() -> None:
    device = Device.named("h200")
    assert device.peak(torch.float32) == 66.9
    assert device.peak(torch.float32, "tf32") == 494.7
    assert device.peak(torch.float32, "tf32x3") == pytest.approx(494.7 / 3)
    assert device.peak(torch.float64) == 66.9


def test_who_has_the_copy_engine() -> None:
    assert [name for name in NAMES if Device.named(name).has_tma] == ["b200", "h100", "h200"]


def test_names_in_any_case_and_one_object() -> None:
    assert Device.named("H200") is Device.named("h200")
    assert hash(Device.named("h200")) == hash(replace(Device.named("h200"), sources={}))


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"^tilewright.Device.named: name is 'v100'; it must be one of a100, b200"):
        Device.named("v100")


def test_no_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no GPU is visible"):
        Device.current()


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_with_a_sheet_is_recognised(name: str, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    gpu = SimpleNamespace(name=Device.named(name).match[0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    assert Device.current(3) is Device.named(name)


def test_a_gpu_without_one_takes_its_nearest_relatives_rates(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    gpu = SimpleNamespace(
        name="NVIDIA H100 PCIe",
        major=9,
        minor=0,
        multi_processor_count=114,
        total_memory=85 * 10**9,
        L2_cache_size=50 * 2**20,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.version, "hip", None)
    device = Device.current(0)
    assert (device.sms, device.l2_bytes, device.arch) == (114, 50 * 2**20, 90)
    assert device.peak(torch.bfloat16) == pytest.approx(989.4 * 114 / 132)
    assert "scaled by 0.86" in device.sources["all"]
