"""A small product kernel with every kind of argument that a schedule passes: what offline compilation is tested on."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.runtime.launch import Call


@triton.jit
def add_bias(acc, cols, n, bias, scale):
    if bias is not None:
        acc += tl.load(bias[0] + cols * bias[1], mask=cols < n, other=0.0)[None, :]
    return acc * scale[0]


@triton.jit(do_not_specialize=["m"], do_not_specialize_on_alignment=["k"])
def sample_kernel(desc_a, p_b, p_c, m, n, k, strides_b, strides_c, seed: tl.int64, flag, rate, steps,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ORDER: tl.constexpr,
                  EPILOGUE: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    p_b_block = p_b + ks[:, None].to(tl.int64) * strides_b[0] + cols[None, :].to(tl.int64) * strides_b[1]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(0, tl.cdiv(k, BLOCK_K)):
        a = desc_a.load([tl.program_id(0) * BLOCK_M, i * BLOCK_K])
        b = tl.load(p_b_block, mask=(ks[:, None] < k - i * BLOCK_K) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc)
        p_b_block += tl.full((), BLOCK_K, tl.int64) * strides_b[0]
    if EPILOGUE is not None:
        acc = EPILOGUE(acc, cols, n, steps[0], steps[1])
    if flag:
        acc = acc * rate + seed.to(tl.float32)
    p_c_block = p_c + rows[:, None].to(tl.int64) * strides_c[0] + cols[None, :].to(tl.int64) * strides_c[1]
    tl.store(p_c_block, acc.to(p_c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def sample_call(m: int = 256, n: int = 256, k: int = 128, offset: int = 0, bias: bool = True, **changes: Any) -> Call:
    """The kernel over stand-ins; ``offset`` moves B's address, in elements."""
    device = changes.pop("device", "meta")
    a = torch.empty(m, k, dtype=torch.bfloat16, device=device)
    b = torch.empty(offset + n * k, dtype=torch.bfloat16, device=device)[offset:].view(n, k).T
    c = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    vector = torch.empty(n, dtype=torch.float32, device=device)
    desc = TensorDescriptor(a, [m, k], [k, 1], [128, 64])
    given: dict[str, Any] = {
        "seed": 7,
        "flag": True,
        "rate": 0.5,
        "steps": ((vector, vector.stride(0)) if bias else None, (2.0,)),
        **changes,
    }
    args = (desc, b, c, m, n, k, b.stride(), c.stride(), given["seed"], given["flag"], given["rate"], given["steps"])
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "ORDER": "D", "EPILOGUE": add_bias}
    return Call(sample_kernel, (m // 128, n // 128), args, blocks, 4, 3, (2,))
