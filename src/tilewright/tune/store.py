"""The user's store of tuned plans: one sqlite file that many processes read and write.

A plan is kept under all that its time depends on: the device, Triton's version, a hash of the kernel's source and the
problem. A process that looks for a plan sees only those of its own device, Triton and source; others stay for whoever
made them. The file is opened for each operation and closed after it (an operation happens once for a new problem,
not once a call), so that neither a fork nor a thread can share a connection.

A store that cannot be read or written is worth a warning and nothing more: products are planned without it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: the version of the table; another one has a file of another name
SCHEMA = 1
#: rows that are kept; beyond them the oldest go
LIMIT = 200_000
#: seconds to wait for another process that writes: a lookup is in somebody's call, a result took seconds to measure
READ_WAIT_S, WRITE_WAIT_S = 0.5, 30.0

_CREATE = """
CREATE TABLE IF NOT EXISTS plans (
    device TEXT NOT NULL, triton TEXT NOT NULL, source TEXT NOT NULL, problem TEXT NOT NULL,
    plan TEXT NOT NULL, us REAL NOT NULL, date TEXT NOT NULL,
    PRIMARY KEY (device, triton, source, problem)
) WITHOUT ROWID
"""

#: of the values of a :class:`Stored`
_TYPES = (str, float, str)

_warned: set[str] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Stored:
    """One tuned plan.

    Args:
        plan: its line.
        us: microseconds that it took.
        date: when, in UTC.
    """

    plan: str
    us: float
    date: str


def folder() -> Path:
    """Where tilewright keeps what it learns: ``TILEWRIGHT_CACHE_DIR``, or the user's cache folder on this system."""
    if named := os.environ.get("TILEWRIGHT_CACHE_DIR"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "tilewright"
    except RuntimeError:  # a user without a home
        return Path(os.devnull) / "tilewright"


class Store:
    """Tuned plans in ``path`` (by default in :func:`folder`). No method raises for what is wrong with the file."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else folder() / f"plans-{SCHEMA}.sqlite3"
        self._unreadable = False

    def find(self, device: str, triton: str, source: str, problem: str) -> Stored | None:
        """The plan that was measured under this key."""
        if self._unreadable:
            return None
        query = "SELECT plan, us, date FROM plans WHERE device = ? AND triton = ? AND source = ? AND problem = ?"
        try:
            if not self.path.exists():
                return None
            with self._reading() as db:
                row = db.execute(query, (device, triton, source, problem)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._unreadable = not _is_busy(error)
            self._complain("cannot be read", error)
            return None
        # sqlite keeps whatever a foreign hand has put into a column
        good = row is not None and all(isinstance(value, kind) for value, kind in zip(row, _TYPES, strict=True))
        return Stored(*row) if good else None

    def put(self, device: str, triton: str, source: str, problem: str, plan: str, us: float) -> bool:
        """Keep a plan, in place of an older one of the same key; whether that worked."""
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        row = (device, triton, source, problem, plan, float(us), date)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._writing() as db:
                db.execute("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                if db.execute("SELECT count(*) FROM plans").fetchone()[0] > LIMIT:
                    oldest = "SELECT device, triton, source, problem FROM plans ORDER BY date LIMIT ?"
                    key = "(device, triton, source, problem)"
                    db.execute(f"DELETE FROM plans WHERE {key} IN ({oldest})", (LIMIT // 10,))
        except (sqlite3.Error, OSError) as error:
            self._complain("cannot be written", error)
            return False
        self._unreadable = False
        return True

    def __len__(self) -> int:
        """How many plans there are, of all devices and versions; 0 where the file cannot be read."""
        try:
            if not self.path.exists():
                return 0
            with self._reading() as db:
                return int(db.execute("SELECT count(*) FROM plans").fetchone()[0])
        except (sqlite3.Error, OSError) as error:
            self._complain("cannot be read", error)
            return 0

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that creates nothing."""
        uri = self.path.absolute().as_uri()
        try:
            with _opened(f"{uri}?mode=ro", READ_WAIT_S) as db:
                _check(db)
                yield db
                return
        except sqlite3.OperationalError:
            if os.access(self.path.parent, os.W_OK):
                raise
        # a reader of a file in WAL mode writes beside it, unless it is told that nobody does
        with _opened(f"{uri}?immutable=1", READ_WAIT_S) as db:
            _check(db)
            yield db

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction that has the right to write from its start; committed when the block ends."""
        with _opened(self.path.absolute().as_uri(), WRITE_WAIT_S) as db:
            _check(db, new=True)
            _begin(db)
            try:
                db.execute(_CREATE)
                db.execute(f"PRAGMA user_version = {SCHEMA}")
                yield db
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def _complain(self, what: str, error: BaseException) -> None:
        """One warning for a path, however often it fails."""
        with _lock:
            if str(self.path) in _warned:
                return
            _warned.add(str(self.path))
        text = f"tilewright.tune: the store of plans {self.path} {what} ({error}); going on without it"
        warnings.warn(" ".join(text.split()), RuntimeWarning, stacklevel=3)


@contextlib.contextmanager
def _opened(uri: str, wait: float) -> Iterator[sqlite3.Connection]:
    # isolation_level None: transactions are begun and ended here, and nowhere behind our back
    db = sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None)
    try:
        yield db
    finally:
        db.close()


def _begin(db: sqlite3.Connection) -> None:
    """Begin a transaction that may write. A database turns to WAL while nobody uses it, and sqlite may not wait."""
    until = time.monotonic() + WRITE_WAIT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _check(db: sqlite3.Connection, new: bool = False) -> None:
    """Refuse a database that is not ours; an empty one is, where we may write."""
    db.execute("BEGIN")  # both answers from one moment: another process may be making the table
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        empty = not db.execute("SELECT 1 FROM sqlite_master").fetchall()
    finally:
        db.execute("ROLLBACK")
    if version == SCHEMA or (new and version == 0 and empty):
        return
    raise sqlite3.DatabaseError(f"its schema is {version}; this version reads {SCHEMA}")


def _is_busy(error: BaseException) -> bool:
    return "locked" in str(error) or "busy" in str(error)
