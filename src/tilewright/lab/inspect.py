"""What the compiler made of a plan: instructions, registers, spills, shared memory, occupancy. No GPU is needed.

A plan is compiled for the architecture of any device that has a sheet, and the binary is read: with the ``cuobjdump``
and ``nvdisasm`` that come inside Triton's wheel for CUDA, from the assembly text for HIP. Without those tools
instructions are counted in the PTX, and :attr:`Inspection.notes` says so.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from triton import knobs

from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.gemm.schedules import SCHEDULES
from tilewright.runtime.devices import Device
from tilewright.runtime.errors import bad
from tilewright.runtime.launch import Call
from tilewright.runtime.offline import compile_call, name_of, target_of

#: families of instructions, each by a pattern of its opcodes: SASS, PTX, AMD GCN. The first that matches counts
_SASS = {
    "wgmma": r"[HQIB]GMMA",
    "mma.sync": r"[HIDQOB]MMA",
    "tcgen05": r"UTC\w*MMA",
    "async load": r"LDGSTS",
    "bulk load": r"UTMALDG|UBLKCP",
    "bulk store": r"UTMASTG",
    "global load": r"LDG|LD\.E",
    "global store": r"STG|ST\.E",
    "shared load": r"LDS",
    "shared store": r"STS",
    "local load": r"LDL",
    "local store": r"STL",
    "barrier": r"BAR\.|SYNCS",
}
_PTX = {
    "wgmma": r"wgmma\.mma_async",
    "mma.sync": r"mma\.sync",
    "tcgen05": r"tcgen05\.mma",
    "async load": r"cp\.async\.c[ag]",
    "bulk store": r"cp\.async\.bulk\.(tensor\.\w+\.)?global",
    "bulk load": r"cp\.async\.bulk\.(tensor\.\w+\.)?shared",
    "global load": r"ld\.global",
    "global store": r"st\.global",
    "shared load": r"ld\.shared|ldmatrix",
    "shared store": r"st\.shared|stmatrix",
    "local load": r"ld\.local",
    "local store": r"st\.local",
    "barrier": r"bar\.|barrier\.|mbarrier\.",
}
_GCN = {
    "mfma": r"v_mfma|v_smfmac",
    "wmma": r"v_wmma|v_swmmac",
    "global load": r"(global|buffer|flat)_load",
    "global store": r"(global|buffer|flat)_store",
    "shared load": r"ds_(read|load)",
    "shared store": r"ds_(write|store)",
    "local load": r"scratch_load",
    "local store": r"scratch_store",
    "barrier": r"s_barrier",
}
TENSOR_CORE = ("wgmma", "mma.sync", "tcgen05", "mfma", "wmma")


@dataclass(frozen=True)
class Occupancy:
    """Programs that one multiprocessor holds at once, and which of its resources runs out first.

    ``limits`` has the programs that each resource alone has room for.
    """

    programs: int
    limit: str
    limits: dict[str, int] = field(hash=False)


@dataclass(frozen=True)
class Inspection:
    """One compiled plan.

    Args:
        target: the architecture, such as "sm_90" or "gfx942".
        registers: 32-bit registers of a thread; ``None`` when no tool could read the binary.
        spills: bytes of a thread's local memory that stand in for registers; ``None`` as above.
        shared: bytes of shared memory of a program. shared_limit: how many the device gives to one.
        tensor_core: the family of matrix instructions in it ("wgmma", "mma.sync", "tcgen05", "mfma"), or ``None``.
        tensor_core_count: how many there are, in the text of the program (a loop's body counts once).
        instructions: counts by family. opcodes: counts by opcode. total: of all instructions but padding.
        counted_in: "sass", "amdgcn", or "ptx" when there was no disassembler.
        notes: what could not be found out, and why.
    """

    problem: Problem
    plan: Plan
    device: str
    target: str
    kernel: str
    num_warps: int
    registers: int | None
    spills: int | None
    shared: int
    shared_limit: int
    occupancy: Occupancy | None
    tensor_core: str | None
    tensor_core_count: int
    instructions: dict[str, int] = field(hash=False)
    opcodes: dict[str, int] = field(hash=False, repr=False)
    total: int
    counted_in: str
    notes: tuple[str, ...] = ()
    ttgir: str | None = field(default=None, repr=False, compare=False)
    ptx: str | None = field(default=None, repr=False, compare=False)
    sass: str | None = field(default=None, repr=False, compare=False)
    amdgcn: str | None = field(default=None, repr=False, compare=False)

    def to_dict(self, texts: bool = False) -> dict[str, Any]:
        """Everything as JSON can hold it; the texts of the program only when they are asked for."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        out["problem"], out["plan"], out["notes"] = str(self.problem), str(self.plan), list(self.notes)
        out["occupancy"] = None if self.occupancy is None else asdict(self.occupancy)
        for name in ("ttgir", "ptx", "sass", "amdgcn"):
            if not texts:
                del out[name]
        return out


def inspect(problem: Problem, plan: Plan, device: Device) -> Inspection:
    """Compile ``plan`` for ``device`` as a launch on it would be, and read the binary.

    ``ValueError`` when the plan cannot run the problem there; ``RuntimeError``, of one line, when it cannot be compiled
    (no assembler, kernels built for the interpreter, a compiler's error).
    """
    schedule = SCHEDULES.get(plan.schedule)
    if schedule is None:
        raise bad("inspect", "plan", f"'{plan}'", f"of a schedule there is: {', '.join(SCHEDULES)}")
    if why := schedule.refuses(plan, problem, device):
        raise ValueError(f"tilewright.inspect: plan '{plan}' cannot run {problem} on {device.title}: {why}")
    return inspect_call(schedule.signature(plan, problem, device), problem, plan, device)


def inspect_call(call: Call, problem: Problem, plan: Plan, device: Device) -> Inspection:
    """:func:`inspect` of a launch that is already made."""
    target = target_of(device)
    kernel = compile_call(call, target)
    asm, meta = kernel.asm, kernel.metadata
    common: dict[str, Any] = {
        "problem": problem,
        "plan": plan,
        "device": device.name,
        "target": name_of(target),
        "kernel": meta.name,
        "num_warps": meta.num_warps,
        "shared": meta.shared,
        "shared_limit": device.smem_per_block,
        "ttgir": asm.get("ttgir"),
    }
    notes: list[str] = []
    if target.backend == "hip":
        text = asm["amdgcn"]
        registers = _metadata(text, "vgpr_count")
        spilt = _metadata(text, "vgpr_spill_count")
        spills = None if spilt is None else 4 * spilt
        opcodes, families, counted_in = _gcn_opcodes(text), _GCN, "amdgcn"
        common |= {"amdgcn": text}
    else:
        registers, spills, sass = _read_cubin(asm["cubin"], notes)
        common |= {"ptx": asm["ptx"], "sass": sass}
        if sass is not None:
            opcodes, families, counted_in = _sass_opcodes(sass), _SASS, "sass"
        else:
            opcodes, families, counted_in = _ptx_opcodes(asm["ptx"]), _PTX, "ptx"
            notes.append("instructions were counted in the PTX, before ptxas")
    counts = _by_family(opcodes, families)
    # the most frequent one: a Blackwell kernel may also have a few instructions of an older family
    matrix = max(TENSOR_CORE, key=lambda name: counts.get(name, 0))
    has_matrix = counts.get(matrix, 0) > 0
    columns = getattr(meta, "tmem_size", None) or 0
    return Inspection(
        registers=registers,
        spills=spills,
        occupancy=None if registers is None else occupancy(device, registers, meta.shared, meta.num_warps, columns),
        tensor_core=matrix if has_matrix else None,
        tensor_core_count=counts.get(matrix, 0),
        instructions=counts,
        opcodes=dict(opcodes.most_common()),
        total=sum(opcodes.values()),
        counted_in=counted_in,
        notes=tuple(notes),
        **common,
    )


def occupancy(device: Device, registers: int, shared: int, num_warps: int, tensor_columns: int = 0) -> Occupancy:
    """Programs of one multiprocessor, from what a program takes and what the hardware hands out at a time.

    CUDA: registers go to a warp in units of 256, warps to four partitions, shared memory in units of 128 bytes plus
    1 KB that the system keeps for each program (compute capability 8.0 and above; CUDA C++ Programming Guide,
    "Compute Capabilities", and the CUDA Occupancy Calculator); 512 columns of tensor memory on Blackwell.
    HIP: vector registers go to a wave in units of 8, of 512 a lane and SIMD, at most 8 waves a SIMD, four SIMDs;
    local memory in units of 512 bytes ("CDNA3 Instruction Set Architecture").
    """
    if device.backend == "hip":
        waves = min(8, 512 // max(8, _up(registers, 8)))
        by_registers = 4 * waves // num_warps
        by_shared = device.smem_per_sm // _up(shared, 512) if shared else device.blocks_per_sm
    else:
        warps = device.registers_per_sm // 4 // _up(registers * device.warp_size, 256) * 4
        by_registers = warps // num_warps
        by_shared = device.smem_per_sm // (_up(shared, 128) + 1024)
    limits = {
        "registers": by_registers,
        "shared memory": by_shared,
        "threads": device.threads_per_sm // (num_warps * device.warp_size),
        "blocks": device.blocks_per_sm,
    }
    if tensor_columns:
        limits["tensor memory"] = 512 // tensor_columns
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limit, limits)


def inspect_many(
    items: Iterable[tuple[Problem, Plan, Device]], workers: int = 2
) -> Iterator[Inspection | ValueError | RuntimeError]:
    """:func:`inspect` of each (problem, plan, device), in order, as they are ready.

    What could not be compiled yields its exception in its place. ``workers`` processes share the work (one is this
    process). They start afresh, so a script that calls this needs ``if __name__ == "__main__"``.
    """
    listed = list(items)
    workers = min(workers, len(listed))
    if workers <= 1:
        yield from map(_tried, listed)
        return
    # not forked: torch and Triton's compiler have threads, whose locks a fork would copy
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_tried, listed, chunksize=1)


def _tried(item: tuple[Problem, Plan, Device]) -> Inspection | ValueError | RuntimeError:
    try:
        return inspect(*item)
    except (ValueError, RuntimeError) as error:
        # the line alone: a compiler's chain of causes holds what no pipe carries
        return type(error)(str(error)) if type(error) in (ValueError, RuntimeError) else RuntimeError(str(error))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _tool(name: str) -> str | None:
    """The path of one of NVIDIA's tools: Triton's own, or the one that its environment variable names."""
    try:
        return str(getattr(knobs.nvidia, name).path)
    except (RuntimeError, OSError):
        return None


def _read_cubin(cubin: bytes, notes: list[str]) -> tuple[int | None, int | None, str | None]:
    """(registers, bytes of stack frame, SASS) of a binary; ``None`` and a note for what no tool could read."""
    cuobjdump, nvdisasm = _tool("cuobjdump"), _tool("nvdisasm")
    registers = spills = sass = None
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "kernel.cubin")
        Path(path).write_bytes(cubin)
        if cuobjdump is None:
            notes.append("cuobjdump was not found: registers and spills are unknown")
        else:
            # the stack frame is what ptxas spills to: Triton's kernels have no arrays or calls that would use it
            used = re.search(r"REG:(\d+)\s+STACK:(\d+)", _output([cuobjdump, "-res-usage", path]))
            if used:
                registers, spills = int(used[1]), int(used[2])
            else:
                notes.append("cuobjdump did not print the binary's resources: registers and spills are unknown")
        if nvdisasm is None:
            notes.append("nvdisasm was not found")
        else:
            sass = _output([nvdisasm, "-c", path]) or None
            if sass is None:
                notes.append("nvdisasm could not read the binary")
    return registers, spills, sass


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


# "/*0a30*/  @!P0 HGMMA.64x128x16.F32.BF16 R24, ... ;"
_SASS_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
# "@%p1 ld.global.v4.b32 { ... };", also after the brace that inline assembly opens with
_PTX_LINE = re.compile(r"^\s*(?:\{\s*)?(?:@!?%?\w+\s+)?([a-z][\w.:]*)\s+[^;]*;", re.MULTILINE)
_GCN_LINE = re.compile(r"^\t([a-z]+_\w+)", re.MULTILINE)


def _sass_opcodes(sass: str) -> Counter[str]:
    return Counter(op for op in _SASS_LINE.findall(sass) if op != "NOP")  # padding


def _ptx_opcodes(ptx: str) -> Counter[str]:
    return Counter(_PTX_LINE.findall(ptx))


def _gcn_opcodes(text: str) -> Counter[str]:
    # from the entry on: what follows the code is data and metadata, whose lines start with a dot or a semicolon
    return Counter(_GCN_LINE.findall(text))


def _by_family(opcodes: Counter[str], families: dict[str, str]) -> dict[str, int]:
    counts = dict.fromkeys(families, 0)
    for opcode, times in opcodes.items():
        for family, pattern in families.items():
            if re.match(pattern, opcode):
                counts[family] += times
                break
    return counts


def _metadata(text: str, name: str) -> int | None:
    """A figure of the kernel's metadata note, such as ``.vgpr_count``."""
    found = re.search(rf"^\s*\.{name}:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None
