"""Everything of ``bench`` but the clock, on the CPU with tiny shapes; the clock itself where there is a GPU."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_fakes import FakeTimer

from tilewright.lab import bench, bench_compile, bench_products, ceilings, peers, results, suites
from tilewright.lab.inputs import input_bytes, input_sets, make_inputs, wide_a, wide_b
from tilewright.lab.suites import Case, Suite
from tilewright.tune import timing

CPU = torch.device("cpu")


def tiny(runner: str, cases: list[dict[str, Any]], **defaults: Any) -> Suite:
    return suites.parse({"suite": "tiny", "about": "for tests", "runner": runner, "defaults": defaults, "cases": cases})


@pytest.fixture
def run(monkeypatch):
    """Run one tiny suite as ``bench`` runs a stored one."""

    def one(suite: Suite, timer: Any = None, **kwargs: Any) -> dict[str, Any]:
        monkeypatch.setattr(suites, "load", lambda name: suite)
        return bench.run(["tiny"], timer=timer or FakeTimer(), device="cpu", command="tilewright bench tiny", **kwargs)[
            0
        ]

    return one


PRODUCTS = [
    {"op": "matmul", "m": 17, "n": 24, "k": 33, "layout": layout, "from": "odd"} for layout in ("nn", "nt", "tn", "tt")
]


def test_a_result_has_what_a_result_file_has(run, tmp_path):
    found = run(tiny("products", PRODUCTS, dtype="float32", precision="ieee"), json_path=tmp_path / "new" / "r.json")
    assert json.loads((tmp_path / "new" / "r.json").read_text()) == found
    assert results.read(tmp_path / "new" / "r.json") == found
    for key in ("suite", "device", "torch", "triton", "tilewright", "commit", "date", "command", "ceilings"):
        assert found[key], key
    assert found["command"] == "tilewright bench tiny"
    assert set(found["ceilings"]) == {"copy_tbps", "read_tbps", "fp32_tflops"}
    assert found["failed"] == []
    assert [row["layout"] for row in found["rows"]] == ["nn", "nt", "tn", "tt"]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"])
        assert row["peer"] == "torch.matmul fp32"
        assert row["plan"]
        assert 0 < row["error_vs_peer"] < 10
    assert found["summary"] == {"geomean": 1.2, "min": 1.2, "n": 4}


def test_results_are_kept_by_device_and_suite(run, tmp_path):
    run(tiny("products", PRODUCTS[:1], dtype="float32"), results_dir=tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")] == ["cpu/tiny.json"]
    assert results.recorded(tmp_path)[0]["suite"] == "tiny"
    assert results.slug("NVIDIA H200") == "nvidia-h200"


EPILOGUES = (["bias"], ["bias", "gelu"], ["gelu", "dropout"], ["bias", "silu"], ["residual"])


@pytest.mark.parametrize("epilogue", [*EPILOGUES, ["bias", "gelu", "dropout", "residual"]], ids="+".join)
def test_epilogues_are_checked_against_float64_with_their_own_mask(run, epilogue):
    case = {"op": "linear", "m": 96, "n": 64, "k": 40, "epilogue": epilogue}
    found = run(tiny("products", [case], dtype="float32", dropout_p=0.25))
    assert found["failed"] == []
    (row,) = found["rows"]
    assert row["peer"] == "torch eager"
    assert 0 < row["error_vs_peer"] < 10
    assert row["error"] < 1e-5


def test_progress_counts_every_case(run):
    seen: list[tuple[Any, ...]] = []
    run(tiny("products", PRODUCTS, dtype="float32"), progress=lambda *given: seen.append(given))
    assert [done for _, done, total, _ in seen if total == 4][-1] == 4
    assert ("tiny", 2, 4, "17x24x33 tn") in seen


def test_host_rows_have_no_device_figures(run):
    cases = [
        {"op": op, "m": 16, "n": 16, "k": 16, "grad": grad} for op in ("linear", "addmm") for grad in (False, True)
    ]
    found = run(tiny("host", cases, dtype="float32"))
    assert found["failed"] == []
    assert [row["grad"] for row in found["rows"]] == [False, True, False, True]
    assert {row["roof"] for row in found["rows"]} == {None}
    assert {row["ratio"] for row in found["rows"]} == {1.2}


def test_planner_rows_record_every_candidate_and_the_regret(run):
    suite = tiny("planner", [{"op": "matmul", "m": 32, "n": 32, "k": 16}], dtype="float32")
    found = run(suite, FakeTimer(ours=10.0, peer=8.0))
    assert found["failed"] == []
    (row,) = found["rows"]
    assert len(row["candidates"]) > 1
    assert row["plan"] == row["best_plan"] == row["candidates"][0]["plan"]
    assert row["regret"] == 0.0
    assert all(candidate["predicted_us"] > 0 for candidate in row["candidates"])
    assert found["summary"]["within_10"] == 1.0


def test_the_regret_of_a_bad_pick_is_that_of_a_fair_comparison(run):
    class Backwards(FakeTimer):
        def rank(self, sides, sets):
            return super().rank(sides, sets)[::-1]

    suite = tiny("planner", [{"op": "matmul", "m": 32, "n": 32, "k": 16}], dtype="float32")
    found = run(suite, Backwards(ours=10.0, peer=8.0))
    (row,) = found["rows"]
    assert row["best_plan"] != row["plan"]
    assert row["ratio"] == 0.8
    assert row["regret"] == 0.25
    assert found["summary"]["within_10"] == 0.0


def test_a_case_that_raises_is_recorded_and_the_others_run(run, monkeypatch):
    def broken(case, plan=None):
        if case.layout == "tn":
            raise RuntimeError("no such kernel\nsecond line")
        return ours(case, plan)

    ours = peers.ours
    monkeypatch.setattr(peers, "ours", broken)
    found = run(tiny("products", PRODUCTS, dtype="float32"))
    assert [row["layout"] for row in found["rows"]] == ["nn", "nt", "tt"]
    assert bench.failures([found]) == ["tiny: matmul 17x24x33 tn: RuntimeError: no such kernel"]


@pytest.mark.parametrize("damage", ["one element off", "one element not written", "one row of another product"])
def test_a_wrong_result_is_a_failure(run, monkeypatch, damage):
    def wrong(case, plan=None):
        def call(x, out=None):
            result = ours(case, plan)(x)
            if damage == "one element off":
                result[3, 3] += 1.0
            elif damage == "one row of another product":
                result[3] = result[4]
            elif out is not None:
                result[3, 3] = out[3, 3]
            return result if out is None else out.copy_(result)

        return call

    ours = peers.ours
    monkeypatch.setattr(peers, "ours", wrong)
    found = run(tiny("products", PRODUCTS[:1], dtype="float32"))
    assert len(found["rows"]) == 1
    assert "against the peer's" in bench.failures([found])[0]
    json.dumps(found, allow_nan=False)


def test_a_wrong_dropout_rate_is_a_failure(run, monkeypatch):
    def wrong(case, plan=None):
        return ours(suites.Case(**{**vars(case), "dropout_p": 0.5}), plan)

    ours = peers.ours
    monkeypatch.setattr(peers, "ours", wrong)
    case = {"op": "linear", "m": 96, "n": 64, "k": 40, "epilogue": ["gelu", "dropout"]}
    found = run(tiny("products", [case], dtype="float32", dropout_p=0.25))
    assert "it must keep 0.7500" in bench.failures([found])[0]


def test_the_reference_in_pieces_is_the_reference(monkeypatch):
    case = Case("linear", 37, 29, 23, dtype="float32", epilogue=("bias", "gelu"))
    (x,) = make_inputs(case, CPU)
    out = peers.eager(case)(x)
    whole = peers.errors(case, x, [out])
    monkeypatch.setattr(peers, "CHUNK", 100)
    assert peers.errors(case, x, [out]) == pytest.approx(whole)
    out[36, 28] = math.nan
    assert peers.errors(case, x, [out]) == [math.inf]


@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_codes_are_checked_with_their_scales(run, dtype, scales):
    case = {"op": "scaled_matmul", "m": 160, "n": 144, "k": 288, "dtype": dtype, "scales": scales}
    if scales == "block":  # PyTorch has no such product on a CPU
        case = Case(**case)
        (x,) = make_inputs(case, CPU)
        assert bench_products.own_error(case, x, peers.ours(case)) < 4e-3
        return
    if dtype == "int8":
        case["out_dtype"] = "float32"
    found = run(tiny("products", [case]))
    assert found["failed"] == []
    (row,) = found["rows"]
    assert row["peer"] == ("torch._int_mm" if dtype == "int8" else f"torch._scaled_mm {scales}")
    assert row["scales"] == scales
    assert row["error"] < (1e-7 if dtype == "int8" else 4e-3)


@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_wide_operands_are_codes_times_scales(scales):
    case = Case("scaled_matmul", 5, 300, 270, dtype="int8", scales=scales)
    (x,) = make_inputs(case, CPU)
    for i, j in ((0, 0), (4, 129), (2, 269)):
        of_a = {"tensor": (), "row": (i, 0), "block": (i, j // 128)}[scales]
        assert wide_a(x, slice(0, 5))[i, j] == x.a[i, j].double() * x.scale_a[of_a].double()
        assert wide_a(x, slice(i, i + 1))[0, j] == wide_a(x, slice(0, 5))[i, j]
    for i, j in ((0, 0), (269, 299), (128, 128)):
        of_b = {"tensor": (), "row": (0, j), "block": (i // 128, j // 128)}[scales]
        assert wide_b(x, slice(0, 300))[i, j] == x.b[i, j].double() * x.scale_b[of_b].double()
        assert wide_b(x, slice(j - j % 7, 300))[i, j % 7] == wide_b(x, slice(0, 300))[i, j]


def test_few_rows_are_compared_with_a_kernel_that_only_reads(run):
    found = run(tiny("products", [{"op": "matmul", "m": 1, "n": 64, "k": 64}]))
    (row,) = found["rows"]
    assert found["ceilings"]["read_tbps"] > 0
    assert row["of_read"] == pytest.approx(
        Case("matmul", 1, 64, 64).problem().bytes / 10 / 1e6 / found["ceilings"]["read_tbps"], rel=1e-3
    )
    big = {"m": 1, "n": 7168, "k": 7168, "ratio": 1.0, "of_read": 0.9, "peer": "p"}
    assert results.summary([big, {**big, "of_read": 0.8}, {**big, "n": 64, "of_read": 0.1}])["least_of_read"] == 0.8


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("size", [16, 25])
def test_inputs_lie_as_fresh_tensors_would(layout, size):
    case = Case("matmul", size, size + 8, size + 1, dtype="bfloat16", layout=layout)
    for x in make_inputs(case, CPU, sets=3):
        for t, letter, rows, cols in ((x.a, layout[0], case.m, case.k), (x.b, layout[1], case.k, case.n)):
            assert t.shape == (rows, cols)
            assert t.stride() == ((cols, 1) if letter == "n" else (1, rows))
            assert (t.storage_offset() * 2) % 256 == 0


def test_input_sets_pass_the_cache():
    few = Case("matmul", 1, 6144, 4096)
    assert input_sets(few, 60 * 2**20) * input_bytes(few) >= 330e6
    square = Case("matmul", 1024, 1024, 1024)
    assert input_sets(square, 60 * 2**20) * input_bytes(square) >= 120 * 2**20
    assert input_sets(Case("matmul", 8192, 8192, 8192), 60 * 2**20) == 1


def test_bracketed_compares_each_block_with_its_neighbours():
    found = timing.bracketed([2e-6, 1e-6, 4e-6, 2e-6, 4e-6, 2e-6, 8e-6])
    assert found.ours_us == pytest.approx(2.0)
    assert found.peer_us == pytest.approx(4.0)
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(3.0))
    assert found.ratio == pytest.approx(2.0)


def test_the_roof_is_the_larger_of_two_times():
    limits = {"copy_tbps": 4.0, "bf16_tflops": 500.0, "tf32_tflops": 300.0, "fp32_tflops": 50.0}
    big = Case("matmul", 8192, 8192, 8192).problem()
    assert ceilings.roof_us(big, limits) == pytest.approx(2 * 8192**3 / 500e6)
    thin = Case("matmul", 1, 4096, 4096).problem()
    assert ceilings.roof_us(thin, limits) == pytest.approx(thin.bytes / 4e6)
    three = Case("matmul", 4096, 4096, 4096, dtype="float32", precision="tf32x3").problem()
    assert ceilings.roof_us(three, limits) == pytest.approx(2 * 4096**3 / 100e6)


def test_the_summary_has_the_mean_of_large_products_and_of_each_group():
    rows = [
        {"ratio": 0.5, "m": 1, "peer": "a"},
        {"ratio": 1.0, "m": 512, "peer": "a"},
        {"ratio": 4.0, "m": 512, "peer": "b", "epilogue": ["bias"]},
    ]
    found = results.summary(rows)
    assert found["geomean"] == pytest.approx(2 ** (1 / 3), abs=1e-4)
    assert found["geomean_m512"] == 2.0
    assert found["min"] == 0.5
    assert found["groups"]["bias b"] == {"geomean": 4.0, "min": 4.0, "n": 1}


def test_an_error_may_be_twice_the_peers_and_a_rounding():
    assert results.verdict(2e-3, 1e-3, torch.bfloat16) is None
    assert results.verdict(2e-3 + 0.005, 1e-3, torch.bfloat16)
    assert results.verdict(math.nan, 1e-3, torch.bfloat16)
    assert results.verdict(math.inf, math.inf, torch.bfloat16) is None
    assert results.error_ratio(0.0, 0.0) == 1.0
    assert results.error_ratio(math.inf, 1.0) is None


def test_tf32_is_a_peers_setting_and_put_back():
    before = torch.backends.cuda.matmul.allow_tf32
    with peers.tf32(not before):
        assert torch.backends.cuda.matmul.allow_tf32 is not before
    assert torch.backends.cuda.matmul.allow_tf32 is before


def test_jobs_of_one_signature_are_compiled_once():
    from tilewright.gemm.plan import Plan

    plan, other = Plan("tile", 64, 64, 32), Plan("tile", 128, 64, 32)
    same = [Case("matmul", 64, 64, 64), Case("matmul", 128, 4096, 4096)]
    odd = Case("matmul", 65, 64, 64)
    jobs = [(same[0], plan), (same[1], plan), (odd, plan), (same[0], other)]
    assert len(bench_compile.distinct(jobs)) == 3


def test_every_stored_suite_loads():
    sizes = {name: len(suites.load(name).cases) for name in suites.names()}
    assert set(sizes) >= {
        "gemm-bf16", "gemm-fp16", "gemm-fp32", "gemm-fp8", "gemm-int8", "decode", "epilogue", "host", "planner",
        "batch-invariant",
    }  # fmt: skip
    assert sizes["gemm-bf16"] >= 60
    for name in sizes:
        cases = suites.load(name).cases
        assert len({(case.op, case.name, case.dtype) for case in cases}) == len(cases), name


def test_the_bf16_suite_has_the_promised_shapes():
    have = {(case.m, case.n, case.k, case.layout) for case in suites.load("gemm-bf16").cases}
    for size in (256, 1000, 1025, 4097, 16384):
        assert (size, size, size, "nn") in have
    for layout in ("nn", "nt", "tn", "tt"):
        assert (4096, 4096, 4096, layout) in have
    for n, k in ((6144, 4096), (57344, 8192), (5120, 25600), (24576, 1536), (129280, 7168)):
        for m in (1, 16, 64, 128, 256, 512, 1024, 4096, 8192):
            assert (m, n, k, "nt") in have


def test_the_stored_suites_are_what_the_script_makes(tmp_path, monkeypatch):
    script = Path(__file__).parents[2] / "benchmarks" / "make_suites.py"
    if not script.exists():
        pytest.skip("no checkout")
    names: dict[str, Any] = {"__name__": "make_suites", "__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), names)
    names["main"].__globals__["SUITES"] = tmp_path
    names["main"]()
    for path in (script.parent / "suites").glob("*.json"):
        assert path.read_text() == (tmp_path / path.name).read_text(), path.name


def test_a_filter_and_a_quick_look_take_a_part():
    suite = suites.load("gemm-bf16")
    assert {case.m for case in suite.select("4096x4096x4096").cases} == {4096}
    assert all("lm_head" in case.source for case in suite.select(["lm_head"]).cases)
    assert 8 <= len(suites.quick(suite).cases) <= 12


@pytest.mark.parametrize(
    "call, line",
    [
        (dict(suite_names=["gemm-bf61"]), "tilewright.bench: suite is 'gemm-bf61'; it must be one of"),
        (dict(suite_names=[]), "tilewright.bench: suites is empty"),
        (dict(suite_names=["host"], cases="nothing of the kind"), "tilewright.bench: cases is nothing of the kind"),
        (dict(suite_names=["host"], quick=True, results_dir="x"), "a quick look is not recorded"),
        (dict(suite_names=["host"], json_path="/", timer=FakeTimer()), "this is a folder"),
        (dict(suite_names=["host"], json_path="/dev/null/x", timer=FakeTimer()), "writable"),
    ],
)
def test_a_bad_call_is_refused_in_one_line(call, line):
    with pytest.raises(ValueError) as refusal:
        bench.run(call.pop("suite_names"), **call)
    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_a_gpu_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"^tilewright\.bench: no GPU is visible; speed is only measured on one$"):
        bench.run(["gemm-bf16"], json_path=tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"suite": "x"}'])
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"^tilewright\.bench: result file is"):
        results.read(tmp_path / "r.json")


@pytest.mark.parametrize(
    "data",
    [
        {"op": "matmul", "m": 1, "n": 1},
        {"op": "conv", "m": 1, "n": 1, "k": 1},
        {"op": "matmul", "m": 1, "n": 1, "k": 1, "colour": "red"},
        {"op": "matmul", "m": 1, "n": 1, "k": 1, "dtype": "bf16"},
        {"op": "linear", "m": 1, "n": 1, "k": 1, "layout": "nn"},
        {"op": "matmul", "m": 1, "n": 1, "k": 1, "dtype": "int8"},
        {"op": "scaled_matmul", "m": 1, "n": 1, "k": 1, "dtype": "bfloat16"},
        {"op": "scaled_matmul", "m": 1, "n": 1, "k": 1, "dtype": "int8", "scales": "column"},
        {"op": "scaled_matmul", "m": 1, "n": 1, "k": 1, "dtype": "int8", "out_dtype": "f32"},
    ],
)
def test_a_bad_case_is_refused(data):
    with pytest.raises(ValueError, match=r"^tilewright\."):
        tiny("products", [data])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpus_clock_agrees_with_itself():
    timer = timing.CudaTimer(block_ms=5.0, rounds=5, preheat_s=0.3)
    case = Case("matmul", 2048, 2048, 2048)
    sets = make_inputs(case, torch.device("cuda"), 4)
    side = timing.Side("torch", lambda i: sets[i].a @ sets[i].b)
    timer.preheat()
    same = timer.compare(side, side, 4)
    assert 0.9 < same.ratio < 1.1
    twice = timing.Side("twice", lambda i: (sets[i].a @ sets[i].b, sets[i].a @ sets[i].b))
    assert 1.7 < timer.compare(side, twice, 4).ratio < 2.3
    ranked = timer.rank([side, twice], 4)
    assert 1.6 < ranked[1] / ranked[0] < 2.4
    assert timer.host(side, twice).ratio > 1.3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_case_runs_on_the_gpu():
    suite = tiny("products", [{"op": "matmul", "m": 512, "n": 512, "k": 512}])
    result = results.new(suite, "test", {"copy_tbps": 4.0, "bf16_tflops": 600.0}, "test")
    timer = timing.CudaTimer(block_ms=2.0, rounds=3, preheat_s=0.1)
    bench_products.run(suite, timer, torch.device("cuda"), result, lambda done, text: None)
    assert result["failed"] == []
    assert 0.2 < result["rows"][0]["ratio"] < 5
