"""Fit the cost model's constants to recorded times, and write them into a device's sheet.

    python benchmarks/fit_cost.py h200 benchmarks/results/nvidia-h200/{planner,gemm-bf16,gemm-fp16,gemm-fp32}.json
    tilewright tune gemm-bf16 --force --record candidates.json; python benchmarks/fit_cost.py h200 candidates.json

Least squares on the logarithm of predicted over measured time, with more weight on the plans near each case's best (a
planner must tell those apart), by the model's own functions (``tilewright.gemm.cost``). The suite ``planner`` and what
``tilewright tune`` records have every candidate's time, from short blocks; the others have the pick's alone, from long
ones, which say what a plan sustains when the card is warm. Needs numpy and scipy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares

import tilewright as tw
from tilewright.gemm import cost, stored
from tilewright.runtime.devices import Device

SHEETS = Path(__file__).parents[1] / "src" / "tilewright" / "data" / "devices"
#: fitted for the whole device, and for each schedule
SHARED = ("launch_us", "narrow_wait_us", "narrow_load_ns", "l2_gbps_per_sm", "store_gbps_per_sm", "heavy_us_per_mb")
SHARED = (*SHARED, "join_us")
BY_SCHEDULE = ("fill_us", "wait_us", "memory_efficiency")
#: how firmly a constant is held at its default, against one unit of logarithmic error
HOLD_SHARED, HOLD_TILE = 0.02, 0.15


def problem_of(row: dict[str, Any]) -> tw.Problem:
    """The problem of a row: by its key, as ``tilewright tune`` records it, or by its sizes and options."""
    if "problem" in row:
        return stored.problem_of(row["problem"])
    return tw.Problem(
        row["m"], row["n"], row["k"], dtype=getattr(torch, row["dtype"]), layout=row["layout"],
        precision=row.get("precision"), epilogue=tuple(row.get("epilogue") or ()),
    )  # fmt: skip


def load(files: list[str], device: Device) -> list[dict[str, Any]]:
    """Every timed candidate: its problem, plan, time and the best time of its case."""
    found = []
    for file in files:
        for row in json.loads(Path(file).read_text())["rows"]:
            problem = problem_of(row)
            candidates = row.get("candidates") or [{"plan": row["plan"], "us": row["ours_us"]}]
            best = min(c["us"] for c in candidates)
            for candidate in candidates:
                plan = tw.Plan.parse(candidate["plan"])
                found.append(
                    {
                        "case": (file, row["case"], str(problem)),
                        "key": cost.keys(problem, plan)[0],
                        "tile": cost.keys(problem, plan)[1],
                        "schedule": plan.schedule,
                        "us": candidate["us"],
                        "best": best,
                        "features": cost.features(problem, plan, device),
                    }
                )
    return found


def main() -> None:
    """Fit, say how well it went, and write the sheet."""
    name, *files = sys.argv[1:]
    device = Device.named(name)
    data = load(files, device)
    us, best = np.array([d["us"] for d in data]), np.array([d["best"] for d in data])
    weight = np.where(us < 1.1 * best, 3.0, np.where(us < 1.5 * best, 2.0, 0.8))
    columns = zip(*(d["features"] for d in data), strict=True)
    features = cost.Features(*(np.array(column, dtype=float) for column in columns))
    schedules, keys = sorted({d["schedule"] for d in data}), sorted({d["key"] for d in data})
    of_schedule = np.array([schedules.index(d["schedule"]) for d in data])
    of_key = np.array([keys.index(d["key"]) for d in data])

    sizes = [len(SHARED), len(BY_SCHEDULE) * len(schedules), len(keys), len(keys)]
    start = np.log(
        np.concatenate(
            [
                [cost.DEFAULTS[n] for n in SHARED],
                [cost.default(s, n) for n in BY_SCHEDULE for s in schedules],
                np.full(len(keys), cost.DEFAULTS["rate"]),
                np.ones(len(keys)),
            ]
        )
    )
    hold = np.concatenate([np.full(sizes[0] + sizes[1], HOLD_SHARED), np.full(sizes[2] + sizes[3], HOLD_TILE)])

    def unpack(x: np.ndarray) -> tuple[dict[str, float], np.ndarray, np.ndarray, np.ndarray]:
        shared, scheduled, rate, wait = np.split(np.exp(x), np.cumsum(sizes)[:-1])
        return dict(zip(SHARED, shared, strict=True)), scheduled.reshape(len(BY_SCHEDULE), -1), rate, wait

    def model(x: np.ndarray) -> np.ndarray:
        shared, scheduled, rate, wait = unpack(x)
        by_schedule = {n: scheduled[i][of_schedule] for i, n in enumerate(BY_SCHEDULE)}
        return np.asarray(
            cost.total_us(features, {**shared, **by_schedule, "rate": rate[of_key], "wait": wait[of_key]})
        )

    def residual(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.log(model(x) / us) * weight, hold * (x - start)])

    x = least_squares(residual, start, loss="soft_l1", f_scale=0.15, max_nfev=400).x
    shared, scheduled, rate, wait = unpack(x)
    predicted = model(x)
    regrets = {}
    for case in dict.fromkeys(d["case"] for d in data):
        rows = np.array([i for i, d in enumerate(data) if d["case"] == case])
        regrets[case] = us[rows[np.argmin(predicted[rows])]] / us[rows].min() - 1
    near = us < 1.3 * best
    print(f"{len(data)} times of {len(regrets)} cases; error near the best {np.std(np.log(predicted / us)[near]):.1%}")
    within = np.mean([r <= 0.10 for r in regrets.values()])
    print(f"within 10% of the best: {within:.0%}; worst:")
    for case, regret in sorted(regrets.items(), key=lambda item: -item[1])[:6]:
        print(f"  {regret:6.1%}  {case[2]}")

    tiles = {k: [rate[i], wait[i]] for i, k in enumerate(keys)}
    for tile in sorted({d["tile"] for d in data} - set(keys)):  # any other layout: the mean of those measured
        of = sorted({d["key"] for d in data if d["tile"] == tile})
        tiles[tile] = list(np.exp(np.mean(np.log([tiles[k] for k in of]), axis=0)))
    path = SHEETS / f"{name}.json"
    sheet = json.loads(path.read_text())
    sheet["model"] = {
        **{k: v for k, v in sheet.get("model", {}).items() if k == "l2_effective_bytes"},
        "provenance": f"benchmarks/fit_cost.py over {len(data)} times of {len(regrets)} cases "
        f"({', '.join(sorted({Path(f).name for f in files}))})",
        "constants": {n: float(f"{v:.4g}") for n, v in shared.items()},
        "schedules": {
            s: {n: float(f"{scheduled[i][j]:.4g}") for i, n in enumerate(BY_SCHEDULE)} for j, s in enumerate(schedules)
        },
        "tiles": {k: [float(f"{v:.3g}") for v in pair] for k, pair in sorted(tiles.items())},
    }
    path.write_text(json.dumps(sheet, indent=1) + "\n")


if __name__ == "__main__":
    main()
