"""Work in processes of its own, where what crashes or hangs can be ended: compiling kernels, and their first launch.

A worker is ``python -m tilewright.tune.pool``, and not a child of multiprocessing: that would run the caller's script
again in each worker, which a library may not do to a script without ``if __name__ == "__main__"``. Jobs go to a worker
pickled, one at a time; Triton keeps binaries on disk, so that what a worker has compiled the caller loads.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

#: seconds in which a worker has to import torch
START_S = 180.0


def run(
    function: str,
    jobs: Sequence[Any],
    *,
    workers: int | None = None,
    timeout: float = 120.0,
    progress: Callable[[int, int], None] | None = None,
) -> list[str | None]:
    """Call ``function`` ("module:name") on every job; for each job ``None``, or one line that says why it failed.

    Args:
        jobs: what can be pickled. workers: processes; by default one for each core, 32 at most.
        timeout: seconds for one job, after which its worker is killed and another one takes its place.
        progress: called with how many are done and how many there are, from this thread.
    """
    why: list[str | None] = ["was not run"] * len(jobs)
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in range(len(jobs)):
        todo.put(i)
    stop = threading.Event()

    def serve() -> None:
        worker: _Worker | None = None
        try:
            while not stop.is_set():
                try:
                    i = todo.get_nowait()
                except queue.Empty:
                    return
                worker = worker or _Worker(function, stop)
                why[i] = worker.call(jobs[i], timeout)
                if not worker.alive:
                    worker.end()
                    worker = None
                done.put(i)
        finally:
            if worker is not None:
                worker.end()

    count = min(workers or min(os.cpu_count() or 1, 32), len(jobs))
    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for finished in range(len(jobs)):
            done.get()
            if progress:
                progress(finished + 1, len(jobs))
    finally:  # also when interrupted: no worker outlives the call
        stop.set()
        for thread in threads:
            thread.join()
    return why


class _Worker:
    """One process, and the way to and from it."""

    def __init__(self, function: str, stop: threading.Event) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        # a session of its own: Ctrl-C in the terminal is the caller's to handle
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.tune.pool", function],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self._stop, self._started, self.alive = stop, False, True

    def call(self, job: Any, timeout: float) -> str | None:
        """Why the job failed, or ``None``; ``alive`` is false when the worker has to be replaced."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            if not self._started and not self._ready(stdout, START_S):
                return "RuntimeError: the worker did not start"
            self._started = True
            _send(stdin, job)
            if not self._ready(stdout, timeout):
                self.alive = False
                return f"TimeoutError: not done in {timeout:.0f} s"
            found: str | None = _receive(stdout)
            return found
        except (OSError, EOFError):
            self.alive = False
            code = self._process.wait()
            return f"RuntimeError: the worker died (exit status {code})"

    def _ready(self, stdout: IO[bytes], timeout: float) -> bool:
        """Wait for an answer (or the end of the worker); false when there is none in time."""
        end = time.monotonic() + timeout
        while not self._stop.is_set():
            if select.select([stdout], [], [], min(0.2, max(0.0, end - time.monotonic())))[0]:
                if not self._started:
                    _receive(stdout)  # the greeting
                return True
            if time.monotonic() >= end:
                break
        self.alive = False
        return False

    def end(self) -> None:
        """Stop the process, now."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()


def _send(pipe: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    size = struct.unpack("<Q", head)[0]
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """A worker: greet, then answer jobs until there are no more."""
    # what libraries print must not meet what we answer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    _send(answers, None)
    while True:
        try:
            job = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            function(job)
            why = None
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
        _send(answers, why)


if __name__ == "__main__":
    main()
