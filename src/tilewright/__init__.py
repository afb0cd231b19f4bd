"""Triton kernels for PyTorch with matrix multiplication at their centre."""

from tilewright.gemm.matmul import addmm, linear, matmul
from tilewright.gemm.plan import Plan
from tilewright.gemm.planner import plan, plans
from tilewright.gemm.problem import Problem
from tilewright.runtime.devices import Device

__all__ = ["Device", "Plan", "Problem", "addmm", "linear", "matmul", "plan", "plans"]
