"""The command as a user meets it: exit statuses, one line for a bad call, JSON alone on stdout, bare machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import tilewright
from tilewright import cli
from tilewright.cli import app as app_module
from tilewright.cli import options
from tilewright.gemm.plan import Plan
from tilewright.runtime.mode import broken_interpreter

ROOT = Path(tilewright.__file__).resolve().parents[1]
COMMANDS = ("doctor", "demo", "verify", "bench", "tune", "plan", "explain", "inspect", "roofline", "report")


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, on a machine without PATH, HOME or GPU."""
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(
        [sys.executable, "-m", "tilewright", *arguments], env=env, capture_output=True, text=True, timeout=240
    )


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n") and "Traceback" not in text


# ------------------------------------------------------------------------------------------------ in this process


def test_help_lists_what_exists_and_nothing_else(capsys):
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    listed = [line.split()[0] for line in text.split("Commands:")[1].splitlines() if line.strip()]
    assert listed == list(COMMANDS)
    assert cli.run([]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_and_json(capsys, name):
    assert cli.run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert f"\n    tilewright {name}" in text.split("Examples:")[1]


def examples() -> list[list[str]]:
    import re
    import shlex

    text = "".join(str(command.callback.__doc__) for command in app_module.app.registered_commands)
    return [shlex.split(line)[1:] for line in re.findall(r"^ +(tilewright .*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("words", examples(), ids=" ".join)
def test_examples_in_help_are_calls_that_parse(words):
    given = cli._bare_json(words)
    root = app_module.command()
    command = root.commands[given[0]]
    command.make_context(given[0], given[1:], obj=given)  # raises where an option does not exist


@pytest.mark.parametrize(
    "words",
    [
        ["frob"],
        ["plan"],
        ["plan", "--frob", "8x8x8"],
        ["plan", "8x8"],
        ["plan", "8x8x8x8"],
        ["plan", "-8x8x8"],
        ["plan", "8x8x99999999999"],
        ["plan", "*8x8x8"],
        ["plan", "8x8x8", "--dtype", "int8"],
        ["plan", "8x8x8", "--layout", "ns"],
        ["plan", "8x8x8", "--device", "abacus"],
        ["plan", "8x8x8", "--top", "0"],
        ["plan", "8x8x8", "--epilogue", "custom"],
        ["plan", "8x8x8", "--epilogue", "cosine"],
        ["plan", "8x8x8", "--dtype", "fp32", "--precision", "tf64"],
        ["explain", "8x8x8", "--plan", "tile 17x16x16"],
        ["roofline"],
        ["roofline", "--model", "No-Such-Model"],
        ["roofline", "--model", "Llama-3-8B", "--m", "many"],
        ["verify", "--schedule", "no-such"],
        ["verify", "--dtype", "bf16"],
        ["verify", "8x8x8", "--plan", "nonsense"],
        ["bench", "no-such-suite"],
        ["report", "/no/such/file.json"],
        ["doctor", "extra"],
    ],
    ids=" ".join,
)
def test_a_bad_call_is_one_line_and_status_2(capsys, words):
    assert cli.run(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert one_line(said.err), said.err
    assert said.err.startswith("tilewright")


def test_an_unexpected_error_is_one_line_and_status_1(capsys, monkeypatch):
    from tilewright.gemm import planner

    def broken(*_):
        raise KeyError("two\nlines")

    monkeypatch.setattr(planner, "plan", broken)
    assert cli.run(["plan", "8x8x8", "--device", "h200"]) == 1
    err = capsys.readouterr().err
    assert one_line(err)
    assert "KeyError" in err
    assert "TILEWRIGHT_TRACEBACK=1" in err
    monkeypatch.setenv("TILEWRIGHT_TRACEBACK", "1")
    assert cli.run(["plan", "8x8x8", "--device", "h200"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interruption_is_quiet(capsys, monkeypatch):
    from tilewright.gemm import planner

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "plan", interrupted)
    assert cli.run(["plan", "8x8x8", "--device", "h200"]) == 130
    assert capsys.readouterr().err.strip() == ""


def parsed(capsys, *words: str, status: int = 0):
    assert cli.run([*words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_plan_lists_candidates_best_first(capsys):
    out = parsed(capsys, "plan", "4096x4096x4096", "2*64x64x64", "--device", "h200,a100", "--top", "3")["results"]
    assert [(r["problem"].split()[0], r["device"]) for r in out] == [
        ("4096x4096x4096", "h200"),
        ("4096x4096x4096", "a100"),
        ("64x64x64", "h200"),
        ("64x64x64", "a100"),
    ]
    for result in out:
        seconds = [candidate["seconds"] for candidate in result["candidates"]]
        assert len(seconds) == 3
        assert seconds == sorted(seconds)
        assert seconds[0] > 0
        assert result["plan"] == str(Plan.parse(result["candidates"][0]["plan"]))
    assert cli.run(["plan", "4096x4096x4096", "--device", "h200"]) == 0
    assert "first 5 of" in capsys.readouterr().out


def test_explain_says_the_same_in_both_forms(capsys):
    (out,) = parsed(capsys, "explain", "512x1024x256", "--device", "h100", "--dtype", "fp16")["results"]
    assert cli.run(["explain", "512x1024x256", "--device", "h100", "--dtype", "fp16"]) == 0
    assert out["plan"] in capsys.readouterr().out
    forced = "tile 64x64x64 group=1 warps=4 stages=3 split=1"
    (out,) = parsed(capsys, "explain", "512x1024x256", "--device", "h100", "--plan", forced)["results"]
    assert out["plan"] == forced


def test_roofline_is_the_formula(capsys):
    (out,) = parsed(capsys, "roofline", "16x4096x8192", "--device", "h200")["results"]
    sheet = tilewright.Device.named("h200")
    moved = 2 * (16 * 8192 + 8192 * 4096 + 16 * 4096)
    compute = 2 * 16 * 4096 * 8192 / (sheet.peak_tflops["bfloat16"] * 1e12)
    assert out["seconds"] == pytest.approx(max(compute, moved / (sheet.memory_tbps * 1e12)))
    assert out["bound"] == "hbm"
    models = parsed(capsys, "roofline", "--model", "list")["models"]
    name, products = next(iter(models.items()))
    listed = parsed(capsys, "roofline", "--model", name, "--m", "1,16", "--device", "a100")["results"]
    assert len(listed) == 2 * len(products)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words",
    [
        ["plan", "4096x4096x4096", "--device", "all"],
        ["roofline", "--model", "Llama-3-8B", "--device", "h200"],
        ["doctor"],
        ["roofline", "--model", "list"],
        ["bench", "--list"],
    ],
    ids=" ".join,
)
def test_tables_fit_the_terminal(capsys, monkeypatch, words, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    cli.run(words)
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert max(map(len, lines)) <= columns


def test_bench_takes_json_with_and_without_a_file():
    assert cli._bare_json(["bench", "host", "--json"]) == ["bench", "host", "--json", "-"]
    assert cli._bare_json(["bench", "--json", "--quick", "host"]) == ["bench", "--json", "-", "--quick", "host"]
    assert cli._bare_json(["bench", "host", "--json", "f.json"]) == ["bench", "host", "--json", "f.json"]
    assert cli._bare_json(["bench", "host", "--json", "-"]) == ["bench", "host", "--json", "-"]
    assert cli._bare_json(["plan", "8x8x8", "--json"]) == ["plan", "8x8x8", "--json"]


def result() -> dict:
    """A result file of two rows."""
    summary = {"geomean": 1.25, "min": 0.9, "n": 2}
    row = {"op": "matmul", "case": "64x64x64", "dtype": "bfloat16", "plan": "p", "ours_us": 4.0, "peer": "torch.matmul"}
    row |= {"peer_us": 5.0, "ratio": 1.25, "roof": 0.5, "error_vs_peer": 1.0}
    data = {"suite": "s", "device": "Some GPU", "torch": "2", "triton": "3", "tilewright": "0", "commit": "c"}
    data |= {"date": "2020-01-02T00:00:00+00:00", "command": "x", "ceilings": {}, "rows": [row, row], "failed": []}
    return {**data, "summary": summary}


@pytest.mark.parametrize("failed", [[], [{"op": "matmul", "case": "64x64x64", "why": "wrong"}]], ids=["right", "wrong"])
def test_bench_shows_and_judges_what_was_measured(capsys, monkeypatch, failed):
    from tilewright.lab import bench

    asked = {}

    def measured(names, *, progress, **options):
        asked.update(options, names=names)
        progress("s", 0, 1, "case")
        return [{**result(), "failed": failed}]

    monkeypatch.setattr(bench, "run", measured)
    status = 1 if failed else 0
    assert cli.run(["bench", "s", "--json", "f.json", "--cases", "64", "--quick"]) == status
    said = capsys.readouterr()
    assert "64x64x64" in said.out
    assert "1.250" in said.out
    assert (said.err == "") == (not failed)
    assert (asked["names"], asked["json_path"], asked["cases"], asked["quick"]) == (["s"], "f.json", ["64"], True)
    assert parsed(capsys, "bench", "s", status=status)["suite"] == "s"
    assert asked["json_path"] is None


def test_report_reads_result_files(capsys, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(result()))
    assert parsed(capsys, "report", str(path))["results"][0]["summary"] == result()["summary"]
    assert cli.run(["report", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Some GPU" in text
    assert "1.25" in text
    path.write_text("{}")
    assert cli.run(["report", str(path)]) == 2


def test_shapes():
    assert options.shape("1x2x3") == (1, 1, 2, 3)
    assert options.shape("7*10X20x0") == (7, 10, 20, 0)
    problem = options.problems(["3*5x6x7"], "fp32", "tn", "tf32", "bias,gelu+residual", "bf16")[0]
    assert (problem.batch, problem.m, problem.n, problem.k, problem.layout) == (3, 5, 6, 7, "tn")
    assert problem.epilogue == ("bias", "gelu", "residual")
    assert str(problem.out_dtype) == "torch.bfloat16"
    plan = Plan("tile", 64, 64, 32, 4, 8, 2)
    assert Plan.parse(options.short(plan)) == plan


# ------------------------------------------------------------------------------------------- in processes of their own


def test_bare_machine():
    """No GPU, no compiler, empty PATH, no HOME: planning, explaining and the doctor work."""
    done = shell("explain", "4096x4096x4096", "--device", "h200", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["results"][0]["plan"]
    done = shell("doctor", "--json")
    works = broken_interpreter() is None  # what is left without a GPU
    assert (done.returncode, done.stderr) == (0 if works else 1, "")
    assert json.loads(done.stdout)["ok"] is works


def test_bad_call_in_a_process():
    done = shell("plan", "12x12")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr)


def test_no_gpu_to_measure_on():
    done = shell("bench", "gemm-bf16", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr)
    assert "no GPU" in done.stderr


def test_verify_starts_again_interpreted():
    done = shell("verify", "65x64x24", "--dtype", "fp16,fp32", "--quick", "--json")
    if broken_interpreter():
        assert done.returncode == 2
        assert "numpy" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert one_line(done.stderr)
    assert "TRITON_INTERPRET=1" in done.stderr
    out = json.loads(done.stdout)
    assert out["passed"]
    assert out["mode"] == "interpreted"
    assert {check["schedule"] for check in out["checks"]} == {"tile", "persistent", "split"}  # gemv: for few rows


def test_inspect_in_a_process(tmp_path):
    arguments = ("inspect", "256x256x256", "--dtype", "fp16", "--device", "h200", "--plan", "tile 64x64x64 warps=4")
    done = shell(*arguments, "--json", TRITON_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    (out,) = json.loads(done.stdout)["results"]
    assert out["target"] == "sm_90"
    assert out["tensor_core_count"] > 0
    assert "ptx" not in out
    done = shell(*arguments, "--ptx", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0
    assert ".target sm_90" in done.stdout
    done = shell(*arguments, TRITON_INTERPRET="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr)


def test_a_reader_that_leaves_is_no_error():
    """``tilewright plan .. | head -1``: whoever reads may stop."""
    line = [sys.executable, "-m", "tilewright", "plan", "64x64x64", "--device", "h200", "--json", "--top", "1"]
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(line, env=env, stdout=write, stderr=subprocess.PIPE, text=True, timeout=240)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode in (0, 1)
