"""Compilation without a GPU: what Triton's JIT would compile for a :class:`Call`, for any target.

Arguments are specialised by Triton's own binder, bound to the backend of the target, so that the binary is the one a
launch on that device would use: an int of 1 or a ``None`` is a constant, a multiple of 16 and an address on 16 bytes
are known to be one, a number that needs 64 bits has them. No driver is touched.
"""

from __future__ import annotations

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler import compile as triton_compile
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import JITFunction, create_function_from_signature

from tilewright.runtime.devices import Device
from tilewright.runtime.launch import Call


def target_of(device: Device) -> GPUTarget:
    """Triton's name for the architecture of ``device``: an int such as 90 (CUDA), a name such as "gfx942" (HIP)."""
    return GPUTarget(device.backend, device.arch, device.warp_size)


def name_of(target: GPUTarget) -> str:
    """The architecture as its vendor writes it: "sm_90", "gfx942"."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


def source(call: Call, target: GPUTarget | None = None) -> ASTSource:
    """What Triton's JIT would hand to its compiler for ``call`` on ``target`` (sm_90 when it is not given).

    A tensor on torch's meta device stands for one whose storage starts on a multiple of 16 bytes. ``RuntimeError`` when
    kernels were built for the interpreter, since such a kernel has nothing to compile.
    """
    fn = call.fn
    if not isinstance(fn, JITFunction):
        raise RuntimeError(
            "tilewright.offline: kernels were built for Triton's interpreter and cannot be compiled; "
            "start the process without TRITON_INTERPRET"
        )
    backend = make_backend(target or GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(fn.signature, fn.params, backend)
    bound, specialization, options = bind(*call.args, **call.constexprs, **call.options)
    # private, and the same in Triton 3.6 to 3.9: the JIT's own step from bound arguments to a signature. The versions
    # differ in what they record for a string constant, so a copy of it would be wrong in one of them
    _, signature, constexprs, attrs = fn._pack_args(backend, options, bound, specialization, options)
    made = GluonASTSource if fn.is_gluon() else ASTSource
    return made(fn, signature, constexprs, attrs)


def compile_call(call: Call, target: GPUTarget) -> CompiledKernel:
    """``call`` compiled for ``target``, from Triton's cache where it was compiled before.

    ``RuntimeError``, of one line, when the compiler or its assembler is missing or refuses the kernel.
    """
    src = source(call, target)
    try:
        return triton_compile(src, target=target, options=dict(call.options))
    except Exception as error:  # each stage of the compiler has exceptions of its own
        kernel = call.fn.__name__
        raise RuntimeError(f"tilewright.offline: {kernel} for {name_of(target)}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    """What is wrong, in a line: the innermost cause, without the quotation of source that Triton puts before it."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = getattr(error, "error_message", None) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")
    return f"{type(error).__name__}: {wrong}"
