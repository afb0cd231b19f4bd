"""Figures, the report and the tables: from a result of made-up times to what a reader sees."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from bench_fakes import FakeTimer

from tilewright.lab import bench, figures, report, results, suites, tables

pytest.importorskip("plotly")


def measure(monkeypatch: pytest.MonkeyPatch, runner: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    suite = suites.parse(
        {"suite": f"tiny-{runner}", "runner": runner, "cases": cases, "defaults": {"dtype": "float32"}}
    )
    monkeypatch.setattr(suites, "load", lambda name: suite)
    return bench.run(["tiny"], timer=FakeTimer(), device="cpu", command="tilewright bench <tiny>")[0]


@pytest.fixture
def products(monkeypatch):
    cases = [{"op": "matmul", "m": m, "n": 16, "k": 16} for m in (16, 32)]
    return measure(monkeypatch, "products", [*cases, {"op": "linear", "m": 16, "n": 16, "k": 16, "epilogue": ["bias"]}])


@pytest.fixture
def planner(monkeypatch):
    return measure(monkeypatch, "planner", [{"op": "matmul", "m": 16, "n": 16, "k": 16}])


@pytest.fixture
def host(monkeypatch):
    return measure(monkeypatch, "host", [{"op": "linear", "m": 16, "n": 16, "k": 16}])


def points(figure: Any, name: str) -> list[float]:
    return next(list(trace.y) for trace in figure.data if trace.name == name)


def test_each_kind_of_result_has_its_figures(products, planner, host):
    assert set(figures.figures(products)) == {"throughput", "ratio", "roofline"}
    assert set(figures.figures(planner)) == {"regret", "prediction", "roofline"}
    assert set(figures.figures(host)) == {"ratio", "host"}
    assert figures.figures({**products, "rows": []}) == {}


def test_figures_leave_the_result_alone(products):
    before = copy.deepcopy(products)
    figures.figures(products)
    assert products == before


def test_throughput_is_operations_over_time(products):
    figure = figures.throughput(products)
    assert points(figure, "tilewright") == pytest.approx([2 * 16**3 / 10 / 1e6, 2 * 32 * 16**2 / 10 / 1e6])
    assert points(figure, "torch.matmul fp32") == pytest.approx([2 * 16**3 / 12 / 1e6, 2 * 32 * 16**2 / 12 / 1e6])
    assert points(figure, "tilewright bias") == pytest.approx([2 * 16**3 / 10 / 1e6])


def test_ratios_are_sorted(products):
    for i, row in enumerate(products["rows"]):
        row["ratio"] = 2.0 - i
    assert points(figures.ratio(products), "torch.matmul fp32 (2)") == [1.0, 2.0]


def test_the_roofline_bends_where_the_ceilings_meet(products):
    products["ceilings"] = {"copy_tbps": 2.0, "fp32_tflops": 10.0}
    roof = next(trace for trace in figures.roofline(products).data if trace.mode == "lines")
    for x, y in zip(roof.x, roof.y, strict=True):
        assert y == pytest.approx(min(2.0 * x, 10.0))


def test_series_differ_by_more_than_colour(products):
    for figure in (figures.throughput(products), figures.ratio(products)):
        symbols = [trace.marker.symbol for trace in figure.data]
        assert len(set(symbols)) == len(symbols)


def test_the_report_stands_alone_and_shows_every_row(products, planner, host, tmp_path):
    products["failed"] = [{"op": "matmul", "case": "x", "why": "<b>no</b>"}]
    report.write([products, planner, host], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    body = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r'(src|href)="http', body)
    assert "prefers-color-scheme: dark" in text
    assert "&lt;b&gt;no&lt;/b&gt;" in body
    assert "tilewright bench &lt;tiny&gt;" in body
    assert body.count("<tr>") == 3 + sum(len(one["rows"]) for one in (products, planner, host))
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, flags=re.S):
        assert json.loads(data)["data"]


def test_without_plotly_the_report_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(RuntimeError, match=r"tilewright\[plots\]"):
        bench.run(["host"], html_path=tmp_path / "r.html", timer=FakeTimer(), device="cpu")
    assert list(tmp_path.iterdir()) == []


DOCUMENT = "# Title\n\n<!-- results:begin -->\nold\n<!-- results:end -->\n\nafter\n"


@pytest.fixture
def recorded(products, host, tmp_path):
    where = tmp_path / "results"
    for one in (products, host):
        results.write(where / "cpu" / f"{one['suite']}.json", one)
    return where


def test_tables_are_written_once_and_checked(recorded, tmp_path, products):
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT)
    assert tables.update([document], check=True, where=recorded) == [document]
    assert document.read_text() == DOCUMENT
    assert tables.update([document], where=recorded) == [document]
    assert tables.update([document], check=True, where=recorded) == []
    text = document.read_text()
    assert text.startswith("# Title\n") and text.endswith("\n\nafter\n") and "old" not in text
    assert "| `tiny-products` | torch.matmul fp32 | 2 | 1.200 | 1.200 | 1.200 |" in text
    for part in ("**CPU**", products["torch"], products["date"][:10], "`tilewright bench <tiny>`"):
        assert part in text
    products["rows"][0]["ratio"] = 1.1
    results.write(recorded / "cpu" / "tiny-products.json", products)
    assert tables.update([document], check=True, where=recorded) == [document]


def test_a_block_can_name_suites_and_ask_for_rows(recorded):
    text = tables.updated(DOCUMENT.replace("begin ", "begin tiny-host rows "), results.recorded(recorded))
    assert "tiny-products" not in text
    assert "| linear | 16x16x16 nt |" in text
    with pytest.raises(ValueError, match="a recorded suite"):
        tables.updated(DOCUMENT.replace("begin ", "begin tiny-hose "), results.recorded(recorded))


def test_a_document_before_any_result_says_so(tmp_path):
    assert "No results are recorded yet." in tables.updated(DOCUMENT, results.recorded(tmp_path))


@pytest.mark.parametrize("text", ["<!-- results:begin -->\n", "<!-- results:end -->\n", "nothing\n"])
def test_a_document_without_its_marks_is_refused(tmp_path, text, capsys):
    (tmp_path / "a.md").write_text(text)
    assert tables.main([str(tmp_path / "a.md")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (tmp_path / "a.md").read_text() == text


def test_the_command_checks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results, "folder", lambda: tmp_path)
    (tmp_path / "a.md").write_text(DOCUMENT)
    assert tables.main(["--check", str(tmp_path / "a.md")]) == 1
    assert "stale" in capsys.readouterr().out
    assert tables.main([str(tmp_path / "a.md")]) == 0
    assert tables.main(["--check", str(tmp_path / "a.md")]) == 0
    assert tables.main([]) == 2
