"""Triton kernels for PyTorch with matrix multiplication at their centre."""

from tilewright._version import __version__
from tilewright.gemm.matmul import addmm, linear, matmul
from tilewright.gemm.plan import Plan
from tilewright.gemm.planner import plan, plans
from tilewright.gemm.problem import Problem
from tilewright.gemm.scaled import scaled_matmul
from tilewright.gemm.tuning import Tuned, tune
from tilewright.gemm.warmup import warmup
from tilewright.lab.explain import Explanation, explain
from tilewright.runtime.devices import Device

__all__ = [
    "Device",
    "Explanation",
    "Plan",
    "Problem",
    "Tuned",
    "__version__",
    "addmm",
    "explain",
    "linear",
    "matmul",
    "plan",
    "plans",
    "scaled_matmul",
    "tune",
    "warmup",
]
