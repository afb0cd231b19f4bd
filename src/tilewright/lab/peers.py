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
from tilewright.lab import inputs
from tilewright.lab.inputs import Inputs
from tilewright.lab.suites import Case

#: float64 elements that the reference holds of one operand or result at a time
CHUNK = 2**27


Run = Callable[[Inputs], torch.Tensor]


@dataclass(frozen=True)
class Peer:
    """A PyTorch way to do a case. ``capture=False``: it brings CUDA graphs of its own, so it keeps to one input set.

    ``mode`` is that of ``torch.compile``. ``finish`` makes of its result what ours is, before they are compared; it is
    not timed.
    """

    name: str
    run: Run
    capture: bool = True
    mode: str | None = None
    finish: Callable[[Inputs, torch.Tensor], torch.Tensor] | None = None


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Let cuBLAS multiply float32 as tf32, or not, and put the setting back."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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
        if case.op == "scaled_matmul":
            result: torch.Tensor = tw.scaled_matmul(
                x.a,
                x.b,
                *x.scales,
                out_dtype=case.result_dtype,
                fast_accumulate=case.fast_accumulate,
                **extra,
            )
            return result if out is None else out.copy_(result)
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
    if case.op == "scaled_matmul":
        return [_scaled(case)]
    if not case.epilogue:
        names = {"matmul": "torch.matmul", "linear": "F.linear", "addmm": "torch.addmm"}
        name = names[case.op]
        if case.torch_dtype is torch.float32:
            name += " tf32" if case.precision == "tf32" else " fp32"
        return [Peer(name, eager(case))]
    return [Peer("torch eager", eager(case))]


def _scaled(case: Case) -> Peer:
    """PyTorch's product of codes. That of int8 knows no scales: they are applied where results are compared."""
    if case.torch_dtype is torch.int8:
        return Peer("torch._int_mm", lambda x: torch._int_mm(x.a, x.b), finish=_times_scales)

    def run(x: Inputs) -> torch.Tensor:
        return torch._scaled_mm(x.a, x.b, *x.scales, out_dtype=case.result_dtype, use_fast_accum=case.fast_accumulate)

    return Peer(f"torch._scaled_mm {case.scales}" + (" fast" if case.fast_accumulate else ""), run)


def _times_scales(x: Inputs, sums: torch.Tensor) -> torch.Tensor:
    scale_a, scale_b = x.scales
    return sums.double() * scale_a.double() * scale_b.double()


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
        b = inputs.wide_b(x, slice(c, c + cols))
        for r in range(0, m, rows):
            at = (slice(r, r + rows), slice(c, c + cols))
            y = inputs.wide_a(x, at[0]) @ b
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
