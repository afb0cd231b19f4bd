"""The pool of processes: what crashes, hangs or talks in one of them stays there."""

from __future__ import annotations

import os
import signal
import time

import pytest

from support import child
from tilewright.tune import pool


def work(job: tuple[str, str]) -> None:
    """What the workers of these tests run."""
    kind, word = job
    if kind == "write":
        with open(word, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(f"{os.getpid()}\n")
    elif kind == "raise":
        raise ValueError(f"{word}\nand a second line")
    elif kind == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "hang":
        time.sleep(600)
    elif kind == "talk":
        print("x" * 100_000)
        os.write(1, b"y" * 100_000)


def run(jobs, **options):
    return pool.run("test_pool:work", jobs, **{"workers": 2, **options})


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))  # noqa: PTH120


def test_every_job_is_done_once_and_progress_counts(tmp_path):
    seen: list[tuple[int, int]] = []
    jobs = [("write", str(tmp_path / str(i))) for i in range(9)]
    assert run(jobs, progress=lambda *given: seen.append(given)) == [None] * 9
    assert seen == [(i + 1, 9) for i in range(9)]
    pids = [(tmp_path / str(i)).read_text().split() for i in range(9)]
    assert all(len(one) == 1 for one in pids)
    assert len({one[0] for one in pids}) <= 2 and str(os.getpid()) not in {one[0] for one in pids}


def test_no_jobs():
    assert run([]) == []


def test_what_goes_wrong_is_a_line_and_the_rest_is_done(tmp_path):
    file = str(tmp_path / "done")
    jobs = [
        ("raise", "bad luck"),
        ("write", file),
        ("die", ""),
        ("write", file),
        ("hang", ""),
        ("write", file),
        ("talk", ""),
    ]
    began = time.monotonic()
    found = run(jobs, workers=1, timeout=3.0)
    assert time.monotonic() - began < 120
    assert found[0] == "ValueError: bad luck"
    assert found[2] == f"RuntimeError: the worker died (exit status {-signal.SIGSEGV})"
    assert found[4] == "TimeoutError: not done in 3 s"
    assert [found[i] for i in (1, 3, 5, 6)] == [None] * 4
    assert len((tmp_path / "done").read_text().split()) == 3


def test_a_function_that_does_not_exist():
    (why,) = pool.run("test_pool:absent", [("write", "x")], workers=1)
    assert why is not None and why.startswith("RuntimeError: the worker died")


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tilewright.tune import pool\n"
        "print('started')\n"
        f"print(pool.run('test_pool:work', [('write', {str(tmp_path / 'w')!r})], workers=1))\n"
    )
    code = f"import sys, runpy; sys.path.insert(0, {os.path.dirname(__file__)!r}); runpy.run_path({str(script)!r}, run_name='__main__')"  # noqa: E501, PTH120
    done = child(code)
    assert done.stdout == "started\n[None]\n", done.stderr


def test_an_interrupted_caller_leaves_no_worker(tmp_path):
    code = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
from tilewright.tune import pool
file = {str(tmp_path / "pid")!r}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
def interrupt():
    while not os.path.exists(file):
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    pool.run("test_pool:work", [("write", file), ("hang", "")], workers=1)
except KeyboardInterrupt:
    print("interrupted")
"""  # noqa: PTH120
    done = child(code)
    assert done.stdout == "interrupted\n", done.stderr
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
