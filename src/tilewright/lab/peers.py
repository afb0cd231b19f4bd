"""Both sides of a comparison: tilewright's call, PyTorch's calls for the same thing, and the float64 reference."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tilewright.gemm.plan import Plan
from tilewright.lab.suites import Case
from tilewright.tune import timing

#: float64 elements that the reference holds of one operand or result at a time
CHUNK = 2**27


@dataclass(frozen=True)
class Inputs:
    """The tensors of one call: ``a`` (m, k), ``b`` (k, n) as torch sees them, ``bias`` (n,), ``residual`` (m, n)."""

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None


Run = Callable[[Inputs], torch.Tensor]


@dataclass(frozen=True)
class Peer:
    """A PyTorch way to do a case. ``capture=False``: it brings CUDA graphs of its own, so it keeps to one input set.

    ``mode`` is that of ``torch.compile``.
    """

    name: str
    run: Run
    capture: bool = True
    mode: str | None = None


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Let cuBLAS multiply float32 as tf32, or not, and put the setting back."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _matrices(rows: int, cols: int, letter: str, sets: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(sets, rows, cols), random, each matrix dense in its layout and aligned as a fresh allocation would be."""
    if letter == "t":
        return _matrices(cols, rows, "n", sets, dtype, device).transpose(-1, -2)
    pitch = -(-rows * cols // 128) * 128
    flat = torch.randn(sets * pitch, dtype=dtype, device=device)
    return flat.as_strided((sets, rows, cols), (pitch, cols, 1))


def make_inputs(case: Case, device: torch.device, sets: int = 1) -> list[Inputs]:
    """Fresh random inputs. Weights are scaled by 1/sqrt(k), so that results are of order 1 in every dtype."""
    dtype = case.torch_dtype
    a = _matrices(case.m, case.k, case.layout[0], sets, dtype, device)
    b = _matrices(case.k, case.n, case.layout[1], sets, dtype, device).mul_(case.k**-0.5 if case.k else 1.0)
    bias = residual = None
    if "bias" in case.epilogue:
        bias = _matrices(1, case.n, "n", sets, dtype, device)[:, 0]
    if "residual" in case.epilogue or case.op == "addmm":
        residual = _matrices(case.m, case.n, "n", sets, dtype, device)

    def of(t: torch.Tensor | None, i: int) -> torch.Tensor | None:
        return None if t is None else t[i]

    return [Inputs(a[i], b[i], of(bias, i), of(residual, i)) for i in range(sets)]


def input_bytes(case: Case) -> int:
    """Bytes of one input set and its result."""
    return case.problem().bytes


def input_sets(case: Case, l2_bytes: int) -> int:
    """How many input sets a measurement rotates over, so that no call finds its operands in the cache."""
    return timing.input_sets(input_bytes(case), l2_bytes, case.m)


def ours(case: Case, plan: Plan | None = None) -> Callable[..., torch.Tensor]:
    """tilewright's call: ``f(inputs, out=None)``."""
    import tilewright as tw

    kwargs: dict[str, Any] = {}
    if case.activation:
        kwargs["activation"] = case.activation
    if case.dropout:
        kwargs["dropout_p"] = case.dropout
    if case.precision:
        kwargs["precision"] = case.precision
    if case.batch_invariant:
        kwargs["batch_invariant"] = True
    if plan is not None:
        kwargs["plan"] = plan

    def run(x: Inputs, out: torch.Tensor | None = None) -> torch.Tensor:
        extra = dict(kwargs)
        if x.bias is not None:
            extra["bias"] = x.bias
        if x.residual is not None:
            extra["residual"] = x.residual
        if out is not None:
            extra["out"] = out
        if case.op == "linear":
            return tw.linear(x.a, x.b.t(), **extra)
        return tw.matmul(x.a, x.b, **extra)

    def addmm(x: Inputs, out: torch.Tensor | None = None) -> torch.Tensor:
        assert x.residual is not None
        result = tw.addmm(x.residual, x.a, x.b)
        return result if out is None else out.copy_(result)

    return addmm if case.op == "addmm" else run


def eager(case: Case) -> Run:
    """PyTorch's composition of the same steps."""
    p, step = case.dropout, case.activation

    def run(x: Inputs) -> torch.Tensor:
        if case.op == "addmm":
            assert x.residual is not None
            return torch.addmm(x.residual, x.a, x.b)
        if case.op == "linear":
            y = F.linear(x.a, x.b.t(), x.bias)
        else:
            y = torch.matmul(x.a, x.b)
            y = y if x.bias is None else y + x.bias
        if step:
            y = ACTIVATE[step](y)
        if p:
            y = F.dropout(y, p, training=True)
        return y if x.residual is None else y + x.residual

    if case.torch_dtype is not torch.float32:
        return run

    def with_precision(x: Inputs) -> torch.Tensor:
        with tf32(case.precision == "tf32"):
            return run(x)

    return with_precision


#: an activation of each name in torch, in its argument's dtype
ACTIVATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu2": lambda y: F.relu(y).square(),
}


def peers(case: Case) -> list[Peer]:
    """The PyTorch ways that a case is compared with: the one call, or eager and each kind of torch.compile."""
    if not case.epilogue:
        names = {"matmul": "torch.matmul", "linear": "F.linear", "addmm": "torch.addmm"}
        name = names[case.op]
        if case.torch_dtype is torch.float32:
            name += " tf32" if case.precision == "tf32" else " fp32"
        return [Peer(name, eager(case))]
    return [Peer("torch eager", eager(case))]


def compiled(case: Case) -> list[Peer]:
    """torch.compile of the eager composition: tuned, without and with CUDA graphs of its own."""
    steps = eager(case)

    def flat(a: torch.Tensor, b: torch.Tensor, bias: Any, residual: Any) -> torch.Tensor:
        return steps(Inputs(a, b, bias, residual))

    def of(mode: str, static: bool = False) -> Run:
        function = torch.compile(flat, mode=mode, dynamic=False, fullgraph=True)

        def run(x: Inputs) -> torch.Tensor:
            if static:  # as parameters are: else its CUDA graph would copy every operand before each call
                for t in (x.a, x.b, x.bias, x.residual):
                    if t is not None:
                        torch._dynamo.mark_static_address(t, guard=False)
            result: torch.Tensor = function(x.a, x.b, x.bias, x.residual)
            return result

        return run

    plain, graphs = "max-autotune-no-cudagraphs", "max-autotune"
    return [
        Peer("torch.compile", of(plain), mode=plain),
        Peer("torch.compile", of(graphs, static=True), capture=False, mode=graphs),
    ]


@contextlib.contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keep torch.compile's tables of timed choices out of the output."""
    import torch._inductor.config as inductor

    name = "autotune_num_choices_displayed"
    before = getattr(inductor, name, None)
    if before is not None:
        setattr(inductor, name, 0)
    try:
        yield
    finally:
        if before is not None:
            setattr(inductor, name, before)


def probe(case: Case, like: Inputs) -> Inputs:
    """Inputs whose result is non-zero exactly where dropout keeps: the product is 1 everywhere, the rest is nothing."""
    return Inputs(
        torch.ones_like(like.a),
        torch.full_like(like.b, 1.0 / case.k),
        None if like.bias is None else torch.zeros_like(like.bias),
        None if like.residual is None else torch.zeros_like(like.residual),
    )


def kept(case: Case, run: Run, like: Inputs, seed: int) -> torch.Tensor | None:
    """The mask that ``run`` draws after ``torch.manual_seed(seed)``; ``ValueError`` if it keeps another share."""
    if not case.dropout:
        return None
    torch.manual_seed(seed)
    mask = run(probe(case, like)) != 0
    share, count = mask.double().mean().item(), mask.numel()
    spread = 6 * math.sqrt(case.dropout * (1 - case.dropout) / count)
    if abs(share - (1 - case.dropout)) > spread:
        raise ValueError(f"dropout keeps {share:.4f} of the elements; it must keep {1 - case.dropout:.4f}")
    return mask


def errors(
    case: Case, x: Inputs, outputs: Sequence[torch.Tensor], masks: Sequence[torch.Tensor | None] | None = None
) -> list[float]:
    """Relative Frobenius error ||out - ref|| / ||ref|| of each output against float64; infinite where one holds a NaN.

    The whole result is compared, in pieces that bound the memory. ``masks`` are what dropout keeps in each output.
    """
    masks = masks or [None] * len(outputs)
    m, n, k = case.m, case.n, case.k
    cols = min(n, max(1, CHUNK // max(k, 1)))
    rows = min(m, max(1, CHUNK // max(k, cols)))
    wrong = [torch.zeros((), dtype=torch.float64, device=x.a.device) for _ in outputs]
    size = [torch.zeros_like(w) for w in wrong]
    for c in range(0, n, cols):
        b = x.b[:, c : c + cols].double()
        for r in range(0, m, rows):
            at = (slice(r, r + rows), slice(c, c + cols))
            y = x.a[at[0]].double() @ b
            if x.bias is not None:
                y += x.bias[at[1]].double()
            if case.activation:
                y = ACTIVATE[case.activation](y)
            for i, (out, mask) in enumerate(zip(outputs, masks, strict=True)):
                ref = y if mask is None else y * mask[at] / (1 - case.dropout)
                if x.residual is not None:
                    ref = ref + x.residual[at].double()
                wrong[i] += (out[at].double() - ref).square().sum()
                size[i] += ref.square().sum()
    found = []
    for w, s in zip(wrong, size, strict=True):
        error, norm = math.sqrt(w.item()), math.sqrt(s.item())
        error = error / norm if norm else error
        found.append(error if math.isfinite(error) else math.inf)
    return found
