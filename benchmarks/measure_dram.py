"""Bytes that device memory really moves, read by Nsight Compute, beside the simulated cache's.

    python benchmarks/measure_dram.py benchmarks/counters/nvidia-h200/dram-bytes.json

Profiles one 8192 cubed bfloat16 product for each program order (row-major is group 1) and writes dram__bytes_read and
dram__bytes_write next to what ``tilewright.gemm.traffic.simulate`` says. Needs a GPU and ``ncu``.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import triton

import tilewright as tw
from tilewright.gemm import traffic

SIZE = 8192
GROUPS = (1, 8, 16)
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def plan(group: int) -> tw.Plan:
    """The planner's tile for large products, in bands of ``group``."""
    return tw.Plan("persistent", 128, 256, 64, group, 8, 4)


def child() -> None:
    """What is profiled: one product for each order."""
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    for group in GROUPS:
        tw.linear(a, b, plan=plan(group))
    torch.cuda.synchronize()


def measured() -> list[dict[str, float]]:
    """Each metric in bytes, for each launch of the kernel in order."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("measure_dram: ncu is not on the PATH")
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "-k", "regex:persistent_kernel"]
    command += ["--metrics", ",".join(METRICS), sys.executable, __file__, "--child"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = csv.DictReader(io.StringIO(text[text.index('"ID"') :]))
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row["ID"], {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return [found[key] for key in sorted(found, key=int)]


def main() -> None:
    """Profile, compare, write and print."""
    device = tw.Device.current()
    problem = tw.Problem(SIZE, SIZE, SIZE)
    rows: list[dict[str, Any]] = []
    for group, bytes_of in zip(GROUPS, measured(), strict=True):
        model = traffic.simulate(problem, plan(group), device)
        total = sum(bytes_of[m] for m in METRICS)
        rows.append(
            {
                "plan": str(plan(group)),
                "order": "row-major" if group == 1 else f"grouped by {group}",
                "dram_read_mb": round(bytes_of[METRICS[0]] / 1e6, 1),
                "dram_write_mb": round(bytes_of[METRICS[1]] / 1e6, 1),
                "simulated_mb": round(model.hbm / 1e6, 1),
                "simulated_over_measured": round(model.hbm / total, 3),
            }
        )
        print(rows[-1])
    result = {
        "case": f"{SIZE}x{SIZE}x{SIZE} bfloat16 nt",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tilewright": tw.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": "python benchmarks/measure_dram.py",
        "rows": rows,
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    child() if sys.argv[1:] == ["--child"] else main()
