"""The roofline by hand, and the shapes of the models from their configurations."""

from __future__ import annotations

import json
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilewright.gemm.problem import Problem
from tilewright.lab.roofline import Roof, models, presets, products, roof, roofline
from tilewright.runtime.devices import Device

PARAMETERS = {"Llama-3-8B": (32, 8.03e9), "Llama-3-70B": (80, 70.6e9), "Qwen3-32B": (64, 32.8e9)}


def test_a_large_square_by_hand() -> None:
    found = roof(Problem(4096, 4096, 4096), "h200")
    assert found.flops == 2 * 4096**3
    assert found.bytes == 3 * 4096**2 * 2
    assert found.intensity == pytest.approx(4096 / 3)
    assert found.ridge == pytest.approx(989.4 / 4.8)
    assert found.compute == pytest.approx(138.91e-6, rel=1e-4)
    assert found.hbm == pytest.approx(20.97e-6, rel=1e-3)
    assert (found.bound, found.seconds) == ("compute", found.compute)
    assert found.tflops == pytest.approx(989.4)


def test_one_row_by_hand() -> None:
    found = roof(Problem(1, 6144, 4096), "h200")
    assert found.bytes == (4096 + 6144 * 4096 + 6144) * 2
    assert (found.bound, found.seconds) == ("hbm", found.hbm)
    assert found.seconds == pytest.approx(10.49e-6, rel=1e-3)
    # about one operation a byte: 4.8 TB/s gives 4.8 TFLOP/s
    assert found.tflops == pytest.approx(4.8, rel=1e-3)


def test_the_dtype_and_the_precision_choose_the_peak() -> None:
    def compute(**fields: object) -> float:
        return roof(Problem(4096, 4096, 4096, **fields), "h200").compute  # type: ignore[arg-type]

    assert compute(dtype=torch.float32, precision="ieee") == pytest.approx(2 * 4096**3 / 66.9e12)
    assert compute(dtype=torch.float32, precision="tf32x3") == pytest.approx(3 * 2 * 4096**3 / 494.7e12)
    assert compute(dtype=torch.float32, precision="tf32") == pytest.approx(2 * compute())


@pytest.mark.parametrize("m", [0, 1])
@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("batch", [0, 1])
def test_nothing_and_next_to_nothing(m: int, n: int, k: int, batch: int) -> None:
    found = roof(Problem(m, n, k, batch=batch), "h200")
    assert found.bound == "hbm"
    assert found.tflops == (pytest.approx(2 / (6 / 4.8), rel=1e-9) if m * n * k * batch else 0)
    json.dumps(found.to_dict())


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from(Device.names()))
def test_the_bound_is_the_side_of_the_ridge(m: int, n: int, k: int, name: str) -> None:
    device = Device.named(name)
    found = roof(Problem(m, n, k), device)
    assert found.seconds == max(found.compute, found.hbm)
    assert (found.bound == "compute") == (found.intensity > found.ridge)
    assert found.tflops <= device.peak(torch.bfloat16) * (1 + 1e-12)
    # more rows take no less time
    assert roof(Problem(m + 1, n, k), device).seconds >= found.seconds


def test_a_list_keeps_its_order() -> None:
    asked = [Problem(m, 512, 256) for m in (3, 1, 2)]
    found = roofline(asked, "a100")
    assert [r.problem for r in found] == asked
    assert all(isinstance(r, Roof) and r.device == "a100" for r in found)
    assert json.loads(json.dumps(found[0].to_dict()))["m"] == 3


def test_the_models() -> None:
    assert presets()["Llama-3-8B"] == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate-up": (28672, 4096),
        "down": (4096, 14336),
        "lm_head": (128256, 4096),
    }
    assert presets()["Qwen3-32B"]["o"] == (5120, 8192)
    assert presets()["DeepSeek-V3"]["qkv_a"] == (2112, 7168)
    assert set(presets()) == {*PARAMETERS, "DeepSeek-V3"}


@pytest.mark.parametrize("model", sorted(models()))
def test_shapes_follow_from_the_configuration(model: str) -> None:
    entry = models()[model]
    assert "config.json" in entry["source"]
    for name, product in entry["products"].items():
        for size in ("n", "k"):
            formula = product[f"{size}_from"]
            # arithmetic on the configuration's own fields, and nothing else
            assert set(re.findall(r"[a-z_]+", formula)) <= set(entry["config"]), name
            assert eval(formula, {"__builtins__": {}}, dict(entry["config"])) == product[size], name


@pytest.mark.parametrize("model", sorted(PARAMETERS))
def test_the_shapes_make_up_the_models_parameters(model: str) -> None:
    # every layer's products, the logits, and the embedding, which is as large: all but the norms
    layers, parameters = PARAMETERS[model]
    weights = {name: n * k for name, (n, k) in presets()[model].items()}
    head = weights.pop("lm_head")
    assert layers * sum(weights.values()) + 2 * head == pytest.approx(parameters, rel=0.005)


def test_products_of_a_model() -> None:
    found = products("llama-3-8b", 16, dtype=torch.float16)
    assert list(found) == ["qkv", "o", "gate-up", "down", "lm_head"]
    assert found["down"] == Problem(16, 4096, 14336, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"^tilewright.roofline: model is 'GPT-9'; it must be one of Llama-3-8B"):
        products("GPT-9", 1)
