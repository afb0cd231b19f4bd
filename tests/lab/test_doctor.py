"""What the doctor says of machines, described rather than owned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.lab import doctor
from tilewright.lab.doctor import Gpu, Machine

GPU = Gpu("NVIDIA H200", 90, 140.0, 132)
TOOLS = {"ptxas": "/t/ptxas", "cuobjdump": "/t/cuobjdump", "nvdisasm": "/t/nvdisasm"}
COMPLETE = Machine(
    python="3.11.7",
    torch="2.13.0+cu130",
    triton="3.9.0",
    numpy="2.4.1",
    gpus=(GPU,),
    interpreted=False,
    compiler="/usr/bin/gcc",
    compiler_problem="",
    tools=TOOLS,
    cache="/c",
    cache_problem="",
    triton_cache="/t",
    triton_cache_problem="",
    extras={"cli": True, "plots": True},
    cuda_build="13.0",
    sheets=("h200",),
)
ON_GPU, INTERPRETED, OFFLINE = "kernels on a GPU", "kernels interpreted (CPU)", "compile for any target"
SASS, BENCH, PLOTS, SHEETS = "inspect --sass", "bench", "bench --html, report", "plan, explain, roofline"


def verdicts(machine: Machine) -> dict[str, doctor.Capability]:
    return {capability.name: capability for capability in doctor.judge(machine)}


def test_everything_works_on_a_complete_machine():
    assert all(capability.works for capability in doctor.judge(COMPLETE))


@pytest.mark.parametrize(
    "changes, broken, named",
    [
        ({"gpus": ()}, {ON_GPU, BENCH}, "nvidia-smi"),
        ({"gpus": (), "cuda_build": None}, {ON_GPU, BENCH}, "CUDA or ROCm build"),
        ({"gpus": (replace(GPU, arch=75),)}, {ON_GPU, BENCH}, "8.0"),
        ({"compiler": None, "compiler_problem": "no gcc"}, {ON_GPU, BENCH}, "CC"),
        ({"interpreted": True}, {ON_GPU, OFFLINE, SASS, BENCH}, "unset TRITON_INTERPRET"),
        ({"triton_cache_problem": "/t cannot be written"}, {ON_GPU, OFFLINE, SASS, BENCH}, "TRITON_CACHE_DIR"),
        ({"triton": "3.5.1"}, {ON_GPU, INTERPRETED, OFFLINE, SASS, BENCH}, "triton>=3.6,<3.10"),
        ({"triton": "3.10.0"}, {ON_GPU, INTERPRETED, OFFLINE, SASS, BENCH}, "triton>=3.6,<3.10"),
        ({"triton": None}, {ON_GPU, INTERPRETED, OFFLINE, SASS, BENCH}, "triton>=3.6,<3.10"),
        ({"torch": "2.10.0"}, {ON_GPU, INTERPRETED, OFFLINE, SASS, BENCH}, "torch>=2.11"),
        ({"numpy": None}, {INTERPRETED}, "pip install numpy"),
        ({"triton": "3.6.0"}, {INTERPRETED}, "numpy<2.4"),
        ({"tools": {**TOOLS, "ptxas": None}}, {OFFLINE, SASS}, "TRITON_PTXAS_PATH"),
        ({"tools": {**TOOLS, "nvdisasm": None}}, {SASS}, "--ptx"),
        ({"extras": {"cli": True, "plots": False}}, {PLOTS}, "tilewright[plots]"),
        ({"sheets": ()}, {SHEETS}, "reinstall"),
    ],
)
def test_what_is_missing_breaks_what_needs_it(changes, broken, named):
    found = verdicts(replace(COMPLETE, **changes))
    assert {name for name, capability in found.items() if not capability.works} == broken
    for name in broken:
        assert found[name].why
    assert any(named in found[name].remedy for name in broken)


def test_old_numpy_goes_with_old_triton():
    assert verdicts(replace(COMPLETE, triton="3.6.0", numpy="2.3.5"))[INTERPRETED].works


def test_ok_means_that_kernels_run_somewhere():
    assert doctor.examine(COMPLETE).ok
    no_gpu = replace(COMPLETE, gpus=())
    assert doctor.examine(no_gpu).ok
    assert not doctor.examine(replace(no_gpu, numpy=None)).ok
    assert doctor.examine(replace(COMPLETE, numpy=None)).ok


def test_this_machine():
    found = doctor.examine()
    facts = {fact.name: fact.value for fact in found.facts}
    import torch

    assert torch.__version__.startswith(facts["torch"].split()[0])
    assert any(capability.works for capability in found.capabilities)
    assert found.to_dict()["capabilities"][0]["name"] == ON_GPU


def test_versions():
    assert doctor.numbers("2.11.0+cu130") == (2, 11, 0)
    assert doctor.numbers("unknown") == ()
    for version in ("3.6.0", "3.8.1", "3.9.0"):
        assert doctor.unsupported("triton", version) == ""


def test_folders(tmp_path, monkeypatch):
    assert doctor.writable(tmp_path / "not" / "there") == ""
    file = tmp_path / "file"
    file.write_text("")
    assert "is not a folder" in doctor.writable(file / "below")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert doctor.cache_folder() == tmp_path
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor.cache_folder() == tmp_path / "tilewright"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert doctor.triton_cache_folder() == tmp_path


def test_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "/no/such/compiler")
    assert doctor.compiler() == (None, "CC is '/no/such/compiler', which is no program")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    found, wrong = doctor.compiler()
    assert found is None
    assert wrong
    fake = tmp_path / "clang"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.compiler() == (str(fake), "")


def test_tools_are_those_of_the_installed_triton():
    for path in doctor.triton_tools().values():
        assert path is None or Path(path).is_file()
