"""The store of plans: what it keeps, and all that may be wrong with its file."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from support import SRC, child
from tilewright.tune import store as module
from tilewright.tune.store import Store, Stored, folder

KEY = ("a device", "3.6.0")


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch):
    monkeypatch.setattr(module, "_warned", set())


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "new" / "plans.sqlite3")


def put(store: Store, problem: str = "p", plan: str = "tile 16x16x16", source: str = "s", us: float = 2.0) -> bool:
    return store.put(*KEY, source, problem, plan, us)


def find(store: Store, problem: str = "p", source: str = "s") -> Stored | None:
    return store.find(*KEY, source, problem)


def complains(store: Store, what: str = "find") -> str:
    """The one warning of two operations."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert (find(store) is None) if what == "find" else (put(store) is False)
    assert len(caught) == 1 and caught[0].category is RuntimeWarning
    text = str(caught[0].message)
    assert text.startswith(f"tilewright.tune: the store of plans {store.path} ") and "\n" not in text
    return text


def test_what_was_put_is_found_under_its_whole_key(store):
    assert find(store) is None and len(store) == 0
    assert not store.path.exists()  # looking creates nothing
    assert put(store)
    found = find(store)
    assert found is not None and (found.plan, found.us) == ("tile 16x16x16", 2.0)
    assert store.find("another device", KEY[1], "s", "p") is None
    assert store.find(KEY[0], "3.7.0", "s", "p") is None
    assert find(store, source="t") is None
    assert find(store, "q") is None
    assert find(Store(store.path)) == found


def test_a_newer_measurement_replaces_the_older_and_another_source_stays_beside_it(store):
    put(store, us=3.0)
    put(store, us=1.5)
    put(store, source="t", plan="tile 32x32x32")
    assert len(store) == 2
    assert find(store).us == 1.5
    assert find(store, source="t").plan == "tile 32x32x32"


def test_the_file_is_in_wal_mode_and_knows_its_schema(store):
    put(store)
    with sqlite3.connect(store.path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA user_version").fetchone() == (module.SCHEMA,)


WRITER = """
import sys
from tilewright.tune.store import Store
store, name = Store(sys.argv[1]), sys.argv[2]
for i in range(60):
    assert store.put("a device", "3.6.0", "s", f"{name}/{i}", "tile 16x16x16", 1.0)
    assert store.put("a device", "3.6.0", "s", "shared", f"tile 16x16x16 stages={i + 1}", 1.0)
    assert store.find("a device", "3.6.0", "s", f"{name}/{i}")
"""


def test_several_processes_write_at_once(store):
    env = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONWARNINGS": "error"}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(store.path), str(i)], env=env, stderr=subprocess.PIPE)
        for i in range(4)
    ]
    for one in writers:
        said = one.communicate(timeout=240)[1]
        assert one.returncode == 0, said.decode()
    assert len(store) == 4 * 60 + 1


@pytest.mark.parametrize("again", range(5))  # the first writers of a new file meet while it is made
def test_threads_write_at_once(store, again):
    done = []
    threads = [threading.Thread(target=lambda i=i: done.append(put(store, f"p{i}"))) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 16 and len(store) == 16


# ---------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    "content", [b"not a database, whatever its name says" * 100, b"SQLite format 3\0" + b"x" * 4096]
)
def test_a_broken_file_is_one_warning(tmp_path, content):
    path = tmp_path / "plans.sqlite3"
    path.write_bytes(content)
    assert "cannot be read" in complains(Store(path))
    module._warned.clear()
    assert "cannot be written" in complains(Store(path), "put")
    assert path.read_bytes() == content  # somebody may want to look at it


def test_an_empty_file_is_a_store_that_was_just_begun(tmp_path):
    path = tmp_path / "plans.sqlite3"
    path.touch()
    assert put(Store(path)) and len(Store(path)) == 1


@pytest.mark.parametrize("version", [0, 2, 77])
def test_a_foreign_schema_is_one_warning_and_stays_as_it_is(tmp_path, version):
    path = tmp_path / "plans.sqlite3"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE plans (colour TEXT)")
        db.execute("INSERT INTO plans VALUES ('blue')")
        db.execute(f"PRAGMA user_version = {version}")
    assert "schema" in complains(Store(path))
    module._warned.clear()
    assert "schema" in complains(Store(path), "put")
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT * FROM plans").fetchall() == [("blue",)]


def test_the_right_version_with_other_columns(tmp_path):
    path = tmp_path / "plans.sqlite3"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE plans (colour TEXT)")
        db.execute(f"PRAGMA user_version = {module.SCHEMA}")
    assert "no such column" in complains(Store(path))


def test_values_of_another_type_are_passed_over(store):
    put(store)
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE plans SET plan = x'ff00'")
    assert find(store) is None


def test_a_folder_that_is_a_file_and_a_file_that_is_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in complains(Store(tmp_path / "file" / "plans.sqlite3"), "put")
    (tmp_path / "folder").mkdir()
    assert "cannot be read" in complains(Store(tmp_path / "folder"))


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    _read_only_folder(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_that_cannot_be_written_by_a_user(tmp_path):
    for one in (tmp_path, *tmp_path.parents[:-2]):
        one.chmod(0o755)
    found = Store(tmp_path / "ready" / "plans.sqlite3")
    assert put(found)
    code = f"""
import os, warnings
from tilewright.tune.store import Store
os.setuid(65534)
store = Store({str(found.path)!r})
warnings.simplefilter("error")
assert store.find("a device", "3.6.0", "s", "p").plan == "tile 16x16x16"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        assert not store.put("a device", "3.6.0", "s", "q", "tile 16x16x16", 1.0)
assert len(caught) == 1 and "cannot be written" in str(caught[0].message), caught
print("seen")
"""
    done = child(code)
    assert done.stdout == "seen\n", done.stderr


def _read_only_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "ready" / "plans.sqlite3")
    assert put(store)
    store.path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert find(store).plan == "tile 16x16x16"
        assert "cannot be written" in complains(store, "put")
    finally:
        store.path.parent.chmod(0o700)


def test_a_full_disk_is_one_warning_and_leaves_what_was_there(store, monkeypatch):
    put(store)

    class Full(sqlite3.Connection):
        def execute(self, sql, *args):
            if sql.startswith("INSERT"):
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *args)

    real = sqlite3.connect
    monkeypatch.setattr(module.sqlite3, "connect", lambda *args, **kwargs: real(*args, factory=Full, **kwargs))
    assert "disk is full" in complains_of_put(store)
    assert find(store).plan == "tile 16x16x16"


def complains_of_put(store: Store) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not put(store, "q") and not put(store, "r")
    assert len(caught) == 1
    return str(caught[0].message)


def test_a_store_that_somebody_is_writing_for_long(store, monkeypatch):
    put(store)
    monkeypatch.setattr(module, "WRITE_WAIT_S", 0.1)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert "locked" in complains_of_put(store)
        assert find(store)  # a reader does not wait for a writer
    finally:
        other.close()
    assert put(store, "q")  # and the store is not given up


def test_the_oldest_go_when_there_are_too_many(store, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 20)
    for i in range(25):
        put(store, f"p{i:02}")
    assert len(store) <= 20
    assert find(store, "p00") is None and find(store, "p24") is not None


# -------------------------------------------------------------------------------------------------------- where it is


def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "here"))
    assert folder() == tmp_path / "here"
    assert Store().path == tmp_path / "here" / f"plans-{module.SCHEMA}.sqlite3"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "~/there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == tmp_path / "there"
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert folder() == tmp_path / "xdg" / "tilewright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folder() == tmp_path / ".cache" / "tilewright"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert folder() == tmp_path / "Library" / "Caches" / "tilewright"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert folder() == tmp_path / "local" / "tilewright"
