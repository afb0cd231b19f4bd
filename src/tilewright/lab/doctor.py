"""What this machine is, what will work on it, what will not, why, and the way out. Nothing is run or written."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: the versions that tests run on: (at least, below); ``None`` is no bound
SUPPORTED: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {
    "python": ((3, 10), None),
    "torch": ((2, 11), None),
    "triton": ((3, 6), (3, 10)),
}
#: what each extra brings, by the module that tells whether it is there
EXTRAS = {"cli": ("typer", "rich"), "plots": ("plotly",)}
#: Triton compiles for this compute capability and above
OLDEST_ARCH = 80
TOOLS = ("ptxas", "cuobjdump", "nvdisasm")


@dataclass(frozen=True)
class Fact:
    """Something that is so. ``note`` says what is wrong with it, or is empty."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Capability:
    """Something that will work here, or will not: ``why``, and the ``remedy``."""

    name: str
    works: bool
    why: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All facts and capabilities. ``ok``: kernels run somewhere here, on a GPU or interpreted."""

    facts: tuple[Fact, ...]
    capabilities: tuple[Capability, ...]
    ok: bool

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "ok": self.ok,
            "facts": [asdict(fact) for fact in self.facts],
            "capabilities": [asdict(capability) for capability in self.capabilities],
        }


def version_of(package: str) -> str | None:
    """The installed version of a package, or ``None``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" is (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def unsupported(package: str, version: str | None) -> str:
    """Why a version is outside what is supported, or ""."""
    least, below = SUPPORTED[package]
    wanted = " and ".join(
        text
        for bound, text in (
            (least, f"{_dotted(least)} or newer" if least else ""),
            (below, f"older than {_dotted(below)}" if below else ""),
        )
        if bound
    )
    if version is None:
        return f"not installed; {wanted} is needed"
    have = numbers(version)
    if (least and have < least) or (below and have >= below):
        return f"outside what is supported: {wanted}"
    return ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def writable(folder: Path) -> str:
    """Why nothing can be written in a folder (that need not exist yet), or ""."""
    here = folder
    while not here.exists() and here != here.parent:
        here = here.parent
    if not here.is_dir():
        return f"{here} is not a folder"
    return "" if os.access(here, os.W_OK | os.X_OK) else f"{here} cannot be written"


def cache_folder() -> Path:
    """Where tilewright keeps what it learns: TILEWRIGHT_CACHE_DIR, else the user's cache folder."""
    if named := os.environ.get("TILEWRIGHT_CACHE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home() / ".cache") / "tilewright"


def triton_cache_folder() -> Path:
    """Where Triton keeps compiled kernels."""
    if named := os.environ.get("TRITON_CACHE_DIR"):
        return Path(named)
    return Path(os.environ.get("TRITON_HOME") or _home()) / ".triton" / "cache"


def _home() -> Path:
    # as expanduser does, which never raises: without HOME and without an account it stays "~"
    return Path("~").expanduser() if os.environ.get("HOME") else Path(os.path.expanduser("~"))  # noqa: PTH111


def compiler() -> tuple[str | None, str]:
    """(path of the C compiler that Triton would build its launcher with, what is wrong)."""
    if named := os.environ.get("CC"):
        found = shutil.which(named)
        return found, "" if found else f"CC is {named!r}, which is no program"
    for name in ("gcc", "clang", "cc"):
        if found := shutil.which(name):
            return found, ""
    return None, "no gcc, clang or cc on PATH"


def triton_tools() -> dict[str, str | None]:
    """The NVIDIA tools that Triton calls, by name: those inside its wheel, unless a variable names another."""
    spec = importlib.util.find_spec("triton")
    places = list(spec.submodule_search_locations or []) if spec else []
    found: dict[str, str | None] = {}
    for tool in TOOLS:
        paths = [Path(place) / "backends" / "nvidia" / "bin" / tool for place in places]
        if named := os.environ.get(f"TRITON_{tool.upper()}_PATH"):  # Triton prefers it to its own
            paths = [Path(named)]
        found[tool] = next((str(path) for path in paths if os.access(path, os.X_OK)), None)
    return found


def interpreted() -> bool:
    """Whether this process was started with TRITON_INTERPRET on."""
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in ("1", "y", "yes", "on", "true")


@dataclass(frozen=True)
class Gpu:
    """One GPU as torch sees it; ``arch`` is 90 for compute capability 9.0, or a name such as "gfx942"."""

    name: str
    arch: int | str
    memory_gib: float
    sms: int


def gpus() -> list[Gpu]:
    """The GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        hip = getattr(torch.version, "hip", None) is not None
        arch = p.gcnArchName.split(":")[0] if hip else p.major * 10 + p.minor
        found.append(Gpu(p.name, arch, p.total_memory / 2**30, p.multi_processor_count))
    return found


@dataclass(frozen=True)
class Machine:
    """All that :func:`judge` looks at, so that other machines than this one can be judged."""

    python: str
    torch: str | None
    triton: str | None
    numpy: str | None
    gpus: tuple[Gpu, ...]
    interpreted: bool
    compiler: str | None
    compiler_problem: str
    tools: dict[str, str | None]
    cache: str
    cache_problem: str
    triton_cache: str
    triton_cache_problem: str
    extras: dict[str, bool]
    cuda_build: str | None
    sheets: tuple[str, ...]

    @staticmethod
    def here() -> Machine:
        """This machine."""
        import torch

        from tilewright.runtime.devices import Device

        found, wrong = compiler()
        return Machine(
            python=platform.python_version(),
            torch=version_of("torch"),
            triton=version_of("triton"),
            numpy=version_of("numpy"),
            gpus=tuple(gpus()),
            interpreted=interpreted(),
            compiler=found,
            compiler_problem=wrong,
            tools=triton_tools(),
            cache=str(cache_folder()),
            cache_problem=writable(cache_folder()),
            triton_cache=str(triton_cache_folder()),
            triton_cache_problem=writable(triton_cache_folder()),
            extras={name: all(map(importlib.util.find_spec, modules)) for name, modules in EXTRAS.items()},
            cuda_build=torch.version.cuda or getattr(torch.version, "hip", None),
            sheets=tuple(Device.names()),
        )


def facts(m: Machine) -> tuple[Fact, ...]:
    """What the machine is."""
    import tilewright
    from tilewright._version import __version__

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    mode = "on: kernels run on the CPU, interpreted" if m.interpreted else "off: kernels are compiled"
    lines = [
        Fact("machine", f"{platform.machine()}, {cores} CPU cores"),
        Fact("system", f"{platform.system()} {platform.release()}"),
        Fact("python", f"{m.python} ({sys.executable})", unsupported("python", m.python)),
        Fact("tilewright", f"{__version__} ({Path(tilewright.__file__).parent})"),
        Fact("torch", f"{m.torch} ({m.cuda_build or 'CPU build'})", unsupported("torch", m.torch)),
        Fact("triton", str(m.triton), unsupported("triton", m.triton)),
        Fact("numpy", str(m.numpy), "" if m.numpy else "the interpreter needs it"),
    ]
    lines += [
        Fact(f"GPU {i}", f"{g.name}, {g.arch}, {g.sms} multiprocessors, {g.memory_gib:.0f} GiB", _too_old(g))
        for i, g in enumerate(m.gpus)
    ]
    if not m.gpus:
        lines.append(Fact("GPU", "none that torch sees"))
    lines += [
        Fact("TRITON_INTERPRET", mode),
        Fact("C compiler", m.compiler or "none", m.compiler_problem),
        Fact("Triton's tools", ", ".join(t for t, path in m.tools.items() if path) or "none", _missing_tools(m)),
        Fact("cache", m.cache, m.cache_problem),
        Fact("Triton's cache", m.triton_cache, m.triton_cache_problem),
        *(Fact(f"extra {name}", "installed" if there else "not installed") for name, there in m.extras.items()),
        Fact("device sheets", ", ".join(m.sheets), "" if m.sheets else "none: the installation is broken"),
    ]
    return tuple(lines)


def _missing_tools(m: Machine) -> str:
    missing = [tool for tool, path in m.tools.items() if not path]
    return f"{', '.join(missing)} not in the Triton wheel" if missing else ""


def _too_old(gpu: Gpu) -> str:
    if isinstance(gpu.arch, int) and gpu.arch < OLDEST_ARCH:
        return f"compute capability {gpu.arch / 10} is below {OLDEST_ARCH / 10}"
    return ""


def judge(m: Machine) -> tuple[Capability, ...]:
    """What will work on a machine."""
    on_gpu = _on_gpu(m)
    able = [g for g in m.gpus if not _too_old(g)]
    bench = Capability("bench", True, "measures against PyTorch on the GPU")
    if not on_gpu.works:
        bench = Capability("bench", False, "speed is only measured where kernels run on a GPU", on_gpu.remedy)
    offline = _offline(m)
    missing = [tool for tool in ("cuobjdump", "nvdisasm") if not m.tools.get(tool)]
    sass = Capability("inspect --sass", True, "reads the binary with cuobjdump and nvdisasm")
    if not offline.works:
        sass = Capability("inspect --sass", False, "there is nothing to read without compiling", offline.remedy)
    elif missing:
        remedy = "install Triton's own wheel for Linux; --ptx works without"
        sass = Capability("inspect --sass", False, f"{' and '.join(missing)} not found", remedy)
    plots = Capability("bench --html, report", bool(m.extras.get("plots")), "draws with plotly")
    if not plots.works:
        plots = Capability(plots.name, False, "plotly is not installed", "pip install 'tilewright[plots]'")
    sheets = Capability("plan, explain, roofline", bool(m.sheets), f"from {len(m.sheets)} device sheets, no GPU needed")
    if not m.sheets:
        sheets = Capability(sheets.name, False, "no device sheet was found", "reinstall tilewright")
    if m.sheets and able and on_gpu.works and not _has_sheet(able[0], m):
        sheets = Capability(sheets.name, True, f"{able[0].name} has no sheet: rates are scaled from the nearest one")
    return (on_gpu, _interpreted(m), _composition(m), offline, sass, bench, plots, sheets)


def _has_sheet(gpu: Gpu, m: Machine) -> bool:
    from tilewright.runtime.devices import Device

    return any(gpu.name in Device.named(name).match for name in m.sheets)


def _on_gpu(m: Machine) -> Capability:
    name = "kernels on a GPU"
    if wrong := _versions(m):
        return Capability(name, False, *wrong)
    if m.interpreted:
        return Capability(name, False, "TRITON_INTERPRET is set", "unset TRITON_INTERPRET")
    if not m.gpus:
        if m.cuda_build is None:
            why, remedy = "torch is a CPU build", "on a machine with a GPU, install torch's CUDA or ROCm build"
        else:
            why, remedy = "torch sees no GPU", "check the driver (nvidia-smi or rocm-smi) and CUDA_VISIBLE_DEVICES"
        return Capability(name, False, why, remedy)
    if all(_too_old(g) for g in m.gpus):
        return Capability(name, False, _too_old(m.gpus[0]), "use a GPU of compute capability 8.0 or above")
    if m.compiler is None:
        remedy = "install gcc or clang, or set CC to the path of a compiler"
        return Capability(name, False, f"Triton builds its launcher with a C compiler: {m.compiler_problem}", remedy)
    if m.triton_cache_problem:
        return Capability(name, False, m.triton_cache_problem, "set TRITON_CACHE_DIR to a folder that can be written")
    return Capability(name, True, m.gpus[0].name)


def _versions(m: Machine) -> tuple[str, str] | None:
    for package, version in (("python", m.python), ("torch", m.torch), ("triton", m.triton)):
        if wrong := unsupported(package, version):
            remedy = "use a newer Python" if package == "python" else f"pip install '{package}{_specifier(package)}'"
            return f"{package} {version or ''} is {wrong}".replace("  ", " "), remedy
    return None


def _specifier(package: str) -> str:
    least, below = SUPPORTED[package]
    return ",".join([*([f">={_dotted(least)}"] if least else []), *([f"<{_dotted(below)}"] if below else [])])


def _interpreted(m: Machine) -> Capability:
    name = "kernels interpreted (CPU)"
    if wrong := _versions(m):
        return Capability(name, False, *wrong)
    if m.numpy is None:
        return Capability(name, False, "Triton's interpreter computes with numpy", "pip install numpy")
    if numbers(str(m.triton)) < (3, 7) and numbers(m.numpy) >= (2, 4):
        why = f"the interpreter of Triton {m.triton} fails with numpy {m.numpy}"
        return Capability(name, False, why, "pip install 'numpy<2.4', or a newer Triton")
    how = "TRITON_INTERPRET is set" if m.interpreted else "set TRITON_INTERPRET=1; demo and verify do it themselves"
    return Capability(name, True, how)


def _composition(m: Machine) -> Capability:
    return Capability("CPU tensors in PyTorch", m.torch is not None, "operations compose PyTorch's own, no kernels")


def _offline(m: Machine) -> Capability:
    name = "compile for any target"
    if wrong := _versions(m):
        return Capability(name, False, *wrong)
    if m.interpreted:
        why = "kernels that were built for the interpreter cannot be compiled"
        return Capability(name, False, why, "unset TRITON_INTERPRET")
    if not m.tools.get("ptxas"):
        return Capability(name, False, "no ptxas", "install Triton's own wheel for Linux, or set TRITON_PTXAS_PATH")
    if m.triton_cache_problem:
        return Capability(name, False, m.triton_cache_problem, "set TRITON_CACHE_DIR to a folder that can be written")
    return Capability(name, True, "no GPU needed: sm_80, sm_90, sm_100, gfx942")


def examine(machine: Machine | None = None) -> Diagnosis:
    """The diagnosis of this machine, or of another one that is described."""
    m = machine or Machine.here()
    found = judge(m)
    works = {capability.name: capability.works for capability in found}
    return Diagnosis(facts(m), found, works["kernels on a GPU"] or works["kernels interpreted (CPU)"])
