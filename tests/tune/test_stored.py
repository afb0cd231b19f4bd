"""Which plan a problem has: keys, buckets of m, the user's store before what is shipped before the model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

import tilewright as tw
from tilewright.gemm import planner, stored
from tilewright.tune import shipped
from tilewright.tune.shipped import plans  # itself: other tests have nothing in its place
from tilewright.tune.store import Store

PACKAGE = Path(tw.__file__).parent
H200, H100 = tw.Device.named("h200"), tw.Device.named("h100")
SQUARE = tw.Problem(4096, 4096, 4096)
#: no model would pick it
ODD = tw.Plan("tile", 16, 16, 256, 1, 4, 2)


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    planner.forget()
    yield Store()
    planner.forget()


PROBLEMS = [
    SQUARE,
    tw.Problem(1, 4096, 4096, dtype=torch.float16, out_dtype=torch.float32, layout="st"),
    tw.Problem(100, 1025, 777, batch=6, batch_dims=2, epilogue=("gelu", "dropout", "residual", "pre")),
    tw.Problem(512, 512, 512, dtype=torch.float32, precision="tf32x3", layout="tn", alignment=4),
    tw.Problem(16, 32, 64, dtype=torch.float64, batch_invariant=True),
    tw.Problem(64, 256, 256, dtype=torch.int8, scaled="block"),
    tw.Problem(64, 256, 256, dtype=torch.float8_e4m3fn, out_dtype=torch.float32, scaled="row", fast_accumulate=True),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_key_reads_back(problem):
    line = stored.key(problem)
    assert "\n" not in line
    assert stored.problem_of(line) == stored.representative(problem)
    assert stored.key(stored.problem_of(line)) == line


@pytest.mark.parametrize("text", ["", "4096x4096x4096", "a b c d e f g", stored.key(SQUARE).replace("nt", "xy")])
def test_what_is_no_key_is_one_line(text):
    with pytest.raises(ValueError, match=r"^tilewright\.tune: key is ") as error:
        stored.problem_of(text)
    assert "\n" not in str(error.value)


def test_keys_differ_where_plans_may():
    changes = [
        {"m": 2048}, {"n": 4097}, {"k": 4095}, {"batch": 2}, {"dtype": torch.float16}, {"out_dtype": torch.float32},
        {"layout": "nn"}, {"alignment": 8}, {"epilogue": ("gelu",)}, {"epilogue": ("residual",)},
        {"batch_invariant": True}, {"batch": 2, "batch_dims": 2},
    ]  # fmt: skip
    keys = {stored.key(replace(SQUARE, **{"out_dtype": None, "batch_dims": None, **change})) for change in changes}
    codes = tw.Problem(4096, 4096, 4096, dtype=torch.float8_e4m3fn)
    keys |= {stored.key(p) for p in (codes, replace(codes, scaled="row"), replace(codes, fast_accumulate=True))}
    assert len(keys | {stored.key(SQUARE)}) == len(changes) + 4


def test_steps_that_cost_nothing_share_a_plan():
    assert stored.key(replace(SQUARE, epilogue=("alpha", "bias", "relu"))) == stored.key(SQUARE)


def test_buckets_of_m():
    assert [stored.bucket(m) for m in (0, 1, 5, 16, 17, 33, 255, 257, 512)] == [0, 1, 5, 16, 32, 48, 256, 272, 512]
    for m in range(1, 20000):
        top = stored.bucket(m)
        # idempotent, so that what is measured is found again; and never far: a sixteenth, or one row of small tiles
        assert stored.bucket(top) == top >= m
        assert top - m < max(16, m / 16)
        # all tiles of 16 rows below the bucket's last step are the same
        assert stored.bucket(m + 1) >= top


def test_the_users_store_is_before_what_is_shipped_and_that_before_the_model(own_store, monkeypatch):
    model = tw.plan(SQUARE, H200)
    assert planner.source(SQUARE, H200) == "model"
    other = replace(ODD, block_n=32)
    monkeypatch.setattr(shipped, "plans", lambda *measured: {stored.key(SQUARE): str(other)})
    assert tw.plan(SQUARE, H200) == model  # known for the life of the process, or until plans change
    planner.forget()
    assert (tw.plan(SQUARE, H200), planner.source(SQUARE, H200)) == (other, "shipped")
    assert stored.keep(SQUARE, H200, ODD, 1.0, own_store)
    planner.forget()
    assert (tw.plan(SQUARE, H200), planner.source(SQUARE, H200)) == (ODD, "store")
    assert tw.plans(SQUARE, H200)[0] == model  # the list stays the model's


def test_one_tuned_m_serves_its_bucket_and_no_other(own_store):
    stored.keep(replace(SQUARE, m=4000), H200, ODD, 1.0, own_store)
    assert {tw.plan(replace(SQUARE, m=m), H200) for m in (3969, 4000, 4096)} == {ODD}
    assert ODD not in {tw.plan(replace(SQUARE, m=m), H200) for m in (3968, 4097)}


@pytest.mark.parametrize("what", ["device", "SM count", "Triton", "source", "schema of another file"])
def test_a_plan_measured_elsewhere_is_not_taken(own_store, what):
    device, version, source, store = stored.name_of(H200), triton.__version__, stored.source(), own_store
    if what == "device":
        device = stored.name_of(H100)
    elif what == "SM count":
        device = stored.name_of(replace(H200, sms=66))
    elif what == "Triton":
        version = "3.5.0"
    elif what == "source":
        source = "0" * 16
    else:
        store = Store(own_store.path.with_name("plans-0.sqlite3"))
    assert store.put(device, version, source, stored.key(SQUARE), str(ODD), 1.0)
    assert planner.source(SQUARE, H200) == "model"


@pytest.mark.parametrize(
    "line",
    [
        "", "nonsense", "magic 64x64x64", "tile 64x64", "tile 17x16x16", "tile 64x64x64 warps=3",
        "tile 64x64x1024", "tile 256x256x16 warps=4", "tile 64x64x64 split=2", "persistent 64x64x64 stages=999",
        "tile 64x64x64; DROP TABLE plans",
    ],
)  # fmt: skip
def test_a_plan_that_cannot_run_is_passed_over(own_store, monkeypatch, line, recwarn):
    """Whoever wrote it: no exception, and never a plan that its schedule refuses."""
    own_store.put(stored.name_of(H200), triton.__version__, stored.source(), stored.key(SQUARE), line, 1.0)
    assert planner.source(SQUARE, H200) == "model"
    monkeypatch.setattr(shipped, "plans", lambda *measured: {stored.key(SQUARE): line})
    planner.forget()
    assert planner.source(SQUARE, H200) == "model"


def test_a_plan_is_checked_against_the_very_problem(own_store):
    """The key leaves out light steps and rounds m; what is refused for one of its problems is kept for the others."""
    plan = tw.Plan("persistent", 128, 256, 64, 8, 8, 4)
    for problem in (SQUARE, replace(SQUARE, alignment=2)):
        stored.keep(problem, H200, plan, 1.0, own_store)
    assert tw.plan(SQUARE, H200) == plan
    assert tw.plan(replace(SQUARE, alignment=2), H200).schedule == "tile"


def test_one_query_for_a_problem_and_none_for_a_repeated_call(monkeypatch):
    asked = []
    find = Store.find
    monkeypatch.setattr(Store, "find", lambda self, *key: asked.append(key) or find(self, *key))
    for _ in range(5):
        tw.plan(SQUARE, H200)
        tw.plan(replace(SQUARE, m=1), H200)
    assert len(asked) == 2


def test_a_broken_store_plans_as_the_model_does(own_store):
    wanted = tw.plan(SQUARE, H200)
    own_store.path.parent.mkdir(exist_ok=True)
    own_store.path.write_bytes(b"x" * 5000)
    planner.forget()
    with pytest.warns(RuntimeWarning, match="cannot be read") as caught:
        found = [tw.plan(problem, H200) for problem in (SQUARE, replace(SQUARE, m=1))]
    assert found[0] == wanted
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["gemm/schedules/split.py", "gemm/schedules/common.py", "lang/epilogue.py"])
def test_a_plan_is_stale_when_a_file_of_the_kernels_changes(monkeypatch, tmp_path, name):
    package = tmp_path / "package"
    for folder in ("gemm/schedules", "lang"):
        shutil.copytree(PACKAGE / folder, package / folder)
    monkeypatch.setattr(stored.resources, "files", lambda _: package)
    assert stored.source.__wrapped__() == stored.source()
    (package / name).write_text((package / name).read_text() + "# changed\n")
    assert stored.source.__wrapped__() != stored.source()


# ------------------------------------------------------------------------------------------------------------ shipped


def files() -> list[Path]:
    return sorted((PACKAGE / "data" / "plans").glob("*.json"))


@pytest.mark.parametrize("path", files(), ids=lambda p: p.stem)
def test_shipped_files_are_good(path):
    """Every plan in a file that comes with the package runs the problem that it is for, on the device it names.

    It was measured with the kernels that come with it: what is stale is measured again or taken out.
    """
    data = shipped.parse(json.loads(path.read_text(encoding="utf-8")))
    device = tw.Device.named(path.stem)
    assert (data["device"], data["arch"]) == (device.title, device.arch)
    for key, (line, us, _) in data["plans"].items():
        problem = stored.problem_of(key)
        assert stored.key(problem) == key
        planner.check(tw.Plan.parse(line), problem, device)
        assert us > 0
    for run in data["measured"]:
        assert {"torch", "triton", "commit", "date", "command"} <= set(run)
        assert run["source"] == stored.source()


RUN = {"torch": "2.11", "triton": "3.6.0", "source": "s", "commit": "c", "date": "d", "command": "tilewright tune"}


def test_a_file_is_written_extended_and_says_with_what_each_was_measured(tmp_path):
    path = tmp_path / "new" / "h200.json"
    assert (
        shipped.write(path, "NVIDIA H200", 90, RUN, {"a": ("tile 16x16x16", 1.234), "b": ("tile 32x32x32", 2.0)}) == 2
    )
    again = {**RUN, "commit": "later"}
    assert (
        shipped.write(path, "NVIDIA H200", 90, again, {"b": ("tile 64x64x64", 1.5), "c": ("tile 16x16x16", 3.0)}) == 3
    )
    data = shipped.parse(json.loads(path.read_text()))
    commits = {key: data["measured"][run]["commit"] for key, (_, _, run) in data["plans"].items()}
    assert commits == {"a": "c", "b": "later", "c": "later"}
    assert data["plans"]["a"][:2] == ["tile 16x16x16", 1.23]
    assert path.read_text().count("\n") > 5  # a plan a line: a difference can be read
    shipped.write(path, "NVIDIA H200", 90, {**RUN, "commit": "last"}, dict.fromkeys("abc", ("tile 16x16x16", 1.0)))
    assert [run["commit"] for run in json.loads(path.read_text())["measured"]] == ["last"]  # runs without plans go


def test_a_shipped_plan_counts_where_it_was_measured(monkeypatch, tmp_path):
    path = tmp_path / "data" / "plans" / "h200.json"
    shipped.write(path, "NVIDIA H200", 90, RUN, {"a": ("tile 16x16x16", 1.0), "b": ("tile 16x16x16", 1.0)})
    shipped.write(path, "NVIDIA H200", 90, {**RUN, "source": "t"}, {"b": ("tile 32x32x32", 1.0)})
    monkeypatch.setattr(shipped.resources, "files", lambda _: tmp_path)
    found = plans.__wrapped__
    assert found("h200", 90, "3.6.0", "s") == {"a": "tile 16x16x16"}
    assert found("h200", 90, "3.6.0", "t") == {"b": "tile 32x32x32"}
    for other in (("h100", 90, "3.6.0", "s"), ("h200", 100, "3.6.0", "s"), ("h200", 90, "3.9.0", "s")):
        assert found(*other) == {}


def test_a_file_of_another_device_or_kind_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "h200.json"
    shipped.write(path, "NVIDIA H200", 90, RUN, {"a": ("tile 16x16x16", 1.0)})
    before = path.read_text()
    with pytest.raises(ValueError, match=r"^tilewright\.tune: --ship is .*NVIDIA H100"):
        shipped.write(path, "NVIDIA H100", 90, RUN, {})
    assert path.read_text() == before
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"^tilewright\.tune: --ship is "):
        shipped.write(path, "NVIDIA H200", 90, RUN, {})
    with pytest.raises(ValueError, match=r"^tilewright\.tune: --ship is .*writable"):
        shipped.write(tmp_path / "h200.json" / "x.json", "NVIDIA H200", 90, RUN, {})
