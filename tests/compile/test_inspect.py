"""``lab.inspect``: what it reads from a binary is what is there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tilewright.gemm.plan import Plan
from tilewright.gemm.problem import Problem
from tilewright.lab import inspect as module
from tilewright.lab.inspect import Inspection, inspect, inspect_call, inspect_many, occupancy
from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call

from .sample import sample_call

PROBLEM = Problem(1024, 1024, 1024)
PLAN = Plan("tile", 128, 128, 64, 8, 8, 3)
H200 = Device.named("h200")


@pytest.fixture(scope="module")
def hopper() -> Inspection:
    return inspect(PROBLEM, PLAN, H200)


def test_a_hopper_tile(hopper: Inspection) -> None:
    assert (hopper.target, hopper.kernel, hopper.num_warps) == ("sm_90", "tile_kernel", 8)
    assert hopper.tensor_core == "wgmma"
    # a 128x128x64 slice in 16-deep steps of one 64-row instruction for each of two warpgroups: 4 in the loop's body
    assert hopper.tensor_core_count == 4
    assert hopper.shared == 3 * (128 + 128) * 64 * 2
    assert hopper.shared_limit == H200.smem_per_block
    assert hopper.registers is not None
    assert 64 < hopper.registers < 255
    assert hopper.spills == 0
    assert hopper.instructions["async load"] > 0
    assert hopper.instructions["global store"] > 0
    assert hopper.total == sum(hopper.opcodes.values()) > 100
    assert hopper.notes == ()


def test_texts_are_there(hopper: Inspection) -> None:
    assert hopper.ptx is not None
    assert "wgmma.mma_async" in hopper.ptx
    assert hopper.sass is not None
    assert "HGMMA" in hopper.sass
    assert hopper.ttgir is not None
    assert "warp_group_dot" in hopper.ttgir
    assert hopper.amdgcn is None


def test_counts_agree_between_ptx_and_sass(hopper: Inspection) -> None:
    ptx = module._by_family(module._ptx_opcodes(str(hopper.ptx)), module._PTX)
    for family in ("wgmma", "async load", "global store"):
        assert ptx[family] == hopper.instructions[family] > 0


def test_a_dictionary_for_json(hopper: Inspection) -> None:
    brief, full = hopper.to_dict(), hopper.to_dict(texts=True)
    assert json.loads(json.dumps(brief)) == brief
    assert "sass" not in brief
    assert full["sass"] == hopper.sass
    assert brief["plan"] == str(PLAN)
    assert brief["occupancy"]["programs"] == 2


def crowded() -> Call:
    """A 128x64 sum in one warp: 256 registers a thread, of 255."""
    call = sample_call()
    return replace(call, num_warps=1, constexprs={**call.constexprs, "BLOCK_N": 64})


def test_spills_are_seen() -> None:
    found = inspect_call(crowded(), PROBLEM, PLAN, Device.named("a100"))
    assert found.spills is not None
    assert found.spills > 0
    assert found.instructions["local load"] > 0
    assert found.instructions["local store"] > 0


def test_spills_are_seen_on_amd() -> None:
    wide = replace(sample_call(), num_warps=1)  # 128x128: 256 registers a thread for the sum alone
    found = inspect_call(wide, PROBLEM, PLAN, Device.named("mi300x"))
    assert found.tensor_core == "mfma"
    assert found.spills is not None
    assert found.spills > 0
    assert found.instructions["local load"] > 0


def test_amd_reads_the_assembly() -> None:
    found = inspect(PROBLEM, Plan("tile", 64, 64, 64, 8, 4, 2), Device.named("mi300x"))
    assert (found.target, found.counted_in, found.tensor_core) == ("gfx942", "amdgcn", "mfma")
    assert found.amdgcn is not None
    assert found.tensor_core_count == found.amdgcn.count("\tv_mfma")
    assert found.instructions["global load"] == sum(found.amdgcn.count(f"\t{x}_load") for x in ("global", "buffer"))
    assert found.registers is not None
    assert found.registers > 0
    assert found.spills == 0
    assert found.sass is None
    assert found.ptx is None


def test_without_tools_the_ptx_is_counted(monkeypatch: pytest.MonkeyPatch, hopper: Inspection) -> None:
    monkeypatch.setattr(module, "_tool", lambda name: None)
    found = inspect(PROBLEM, PLAN, H200)
    assert found.counted_in == "ptx"
    assert (found.tensor_core, found.tensor_core_count) == ("wgmma", hopper.tensor_core_count)
    assert (found.registers, found.spills, found.occupancy, found.sass) == (None, None, None, None)
    assert any("cuobjdump" in note for note in found.notes)
    assert any("PTX" in note for note in found.notes)


def test_a_plan_that_cannot_run_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^tilewright\.inspect: plan 'persistent .*' cannot run .*float64") as raised:
        inspect(Problem(64, 64, 64, dtype=torch.float64), Plan("persistent", 128, 128, 64), H200)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=r"^tilewright\.inspect: plan is 'nothing .* of a schedule there is: tile"):
        inspect(PROBLEM, Plan("nothing", 128, 128, 64), H200)


@pytest.mark.parametrize("workers", [1, 2])
def test_many_keep_their_order_and_their_errors(workers: int, hopper: Inspection) -> None:
    refused = Plan("tile", 128, 128, 64, 8, 8, 40)
    found = list(inspect_many([(PROBLEM, PLAN, H200), (PROBLEM, refused, H200), (PROBLEM, PLAN, H200)], workers))
    assert found[0] == found[2] == hopper
    assert isinstance(found[1], ValueError)
    assert "shared memory" in str(found[1])


@pytest.mark.parametrize(
    ("registers", "shared", "num_warps", "programs", "limit"),
    [
        (255, 0, 8, 1, "registers"),  # 8 warps of 8192 registers: all 65,536
        (128, 0, 8, 2, "registers"),
        (168, 98304, 4, 2, "shared memory"),  # 2 x (96 + 1) KB of 228; registers have room for 3
        (32, 0, 4, 16, "registers"),
        (16, 0, 1, 32, "blocks"),
        (16, 0, 32, 2, "threads"),
    ],
)
def test_occupancy_of_hopper(registers: int, shared: int, num_warps: int, programs: int, limit: str) -> None:
    found = occupancy(H200, registers, shared, num_warps)
    assert found.programs == programs
    assert found.limits[limit] == programs
    assert set(found.limits) == {"registers", "shared memory", "threads", "blocks"}


def test_occupancy_counts_tensor_memory() -> None:
    found = occupancy(Device.named("b200"), 64, 1024, 4, tensor_columns=256)
    assert (found.programs, found.limit) == (2, "tensor memory")


def test_occupancy_of_amd() -> None:
    # 128 of 512 registers: four waves a SIMD, 16 a compute unit; 24 KB of 64 KB of local memory: two programs
    found = occupancy(Device.named("mi300x"), 128, 24 * 1024, 4)
    assert found.limits["registers"] == 4
    assert (found.programs, found.limit) == (2, "shared memory")


SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/             @!UP1 UTMALDG.2D [UR8], [UR4] ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R7], desc[UR4][R2.64] ;
.L_x_1:
        /*0a40*/               @P1 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0a50*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0a60*/                   STL.64 [R1+0x8], R4 ;
        /*10a70*/                  LDL.LU R4, [R1] ;
        /*10a80*/                  NOP ;
"""


def test_sass_lines_are_read() -> None:
    opcodes = module._sass_opcodes(SASS)
    assert sum(opcodes.values()) == 8
    counts = {name: n for name, n in module._by_family(opcodes, module._SASS).items() if n}
    loads = ("global load", "bulk load", "async load", "local load")
    assert counts == dict.fromkeys((*loads, "wgmma", "mma.sync", "local store"), 1)
