"""What a device is, as data: one JSON sheet per device under ``data/devices``, each figure with its source."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import torch

from tilewright.runtime.errors import bad


@dataclass(frozen=True)
class Device:
    """A device that a product can be planned for, whether or not it is in this machine.

    Rates are the vendor's dense peaks in TFLOP/s by operand name ("bfloat16", "float16", "tf32", "float32",
    "float64", "float8", "int8"); bandwidths are in TB/s; sizes in bytes; clocks in MHz.
    """

    name: str
    title: str
    backend: str
    arch: int | str
    warp_size: int
    sms: int
    clock_mhz: int
    smem_per_block: int
    smem_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    l2_bytes: int
    memory_bytes: int
    memory_tbps: float
    peak_tflops: dict[str, float] = field(hash=False)
    match: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    model: dict[str, Any] = field(default_factory=dict, hash=False, repr=False)

    @staticmethod
    def names() -> list[str]:
        """The devices that have a sheet."""
        folder = resources.files("tilewright") / "data" / "devices"
        return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))

    @staticmethod
    def named(name: str) -> Device:
        """The device of that sheet, such as ``Device.named("h200")``; ``ValueError`` lists the others."""
        return _load(str(name).lower())

    @staticmethod
    def current(index: int | None = None) -> Device:
        """The GPU that torch would use (or the one of that index); ``RuntimeError`` when there is none."""
        if not torch.cuda.is_available():
            raise RuntimeError(
                "tilewright.Device.current: no GPU is visible; name a device to plan for, such as Device.named('h200')"
            )
        return _of_gpu(torch.cuda.current_device() if index is None else index)

    @property
    def has_tma(self) -> bool:
        """Whether it has the bulk tensor copy engine."""
        return self.backend == "cuda" and isinstance(self.arch, int) and self.arch >= 90

    def peak(self, dtype: torch.dtype, precision: str = "ieee") -> float:
        """Peak rate in TFLOP/s of a product of ``dtype`` operands. tf32x3 does three tf32 products for one."""
        if dtype is torch.float32 and precision != "ieee":
            tf32 = self.peak_tflops.get("tf32", self.peak_tflops["float32"])
            return tf32 / 3 if precision == "tf32x3" else tf32
        name = str(dtype).removeprefix("torch.")
        return self.peak_tflops.get("float8" if name.startswith("float8") else name, self.peak_tflops["float32"])


@functools.cache
def _load(name: str) -> Device:
    if name not in Device.names():
        raise bad("Device.named", "name", repr(name), f"one of {', '.join(Device.names())}")
    text = (resources.files("tilewright") / "data" / "devices" / f"{name}.json").read_text(encoding="utf-8")
    sheet = json.loads(text)
    return Device(name=name, match=tuple(sheet.pop("match")), **sheet)


@functools.cache
def _of_gpu(index: int) -> Device:
    """The sheet whose ``match`` names the GPU; without one, a sheet made from what the driver reports."""
    properties = torch.cuda.get_device_properties(index)
    for name in Device.names():
        device = _load(name)
        if properties.name in device.match:
            return device
    return _from_properties(properties)


def _from_properties(properties: Any) -> Device:
    """A sheet for an unknown GPU: its own sizes, and the rates of the sheet nearest in architecture, scaled by SMs."""
    hip = getattr(torch.version, "hip", None) is not None
    arch: int | str = properties.gcnArchName.split(":")[0] if hip else properties.major * 10 + properties.minor
    sheets = [_load(name) for name in Device.names()]
    if hip:
        near = next(s for s in sheets if s.backend == "hip")
    else:
        near = min((s for s in sheets if isinstance(s.arch, int)), key=lambda s: abs(int(s.arch) - int(arch)))
    scale = properties.multi_processor_count / near.sms
    return Device(
        name=properties.name.lower().replace(" ", "-"),
        title=properties.name,
        backend=near.backend,
        arch=arch,
        warp_size=getattr(properties, "warp_size", near.warp_size),
        sms=properties.multi_processor_count,
        clock_mhz=near.clock_mhz,
        smem_per_block=getattr(properties, "shared_memory_per_block_optin", near.smem_per_block),
        smem_per_sm=getattr(properties, "shared_memory_per_multiprocessor", near.smem_per_sm),
        registers_per_sm=getattr(properties, "regs_per_multiprocessor", near.registers_per_sm),
        threads_per_sm=getattr(properties, "max_threads_per_multi_processor", near.threads_per_sm),
        blocks_per_sm=near.blocks_per_sm,
        l2_bytes=getattr(properties, "L2_cache_size", near.l2_bytes),
        memory_bytes=properties.total_memory,
        memory_tbps=near.memory_tbps * scale,
        peak_tflops={key: value * scale for key, value in near.peak_tflops.items()},
        match=(properties.name,),
        sources={"all": f"sizes from the driver; rates of {near.title} scaled by {scale:.2f} (SM count)"},
        model=near.model,
    )
