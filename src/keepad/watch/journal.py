"""Journal of a watch: which files have their result, and what is still to be delivered. A small SQLite file."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepad.errors import KeepADError
from keepad.watch.arrivals import Signature

_FORMAT = 1
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE files (
    path BLOB PRIMARY KEY, size INTEGER, mtime INTEGER, device TEXT, inode TEXT, digest TEXT
) WITHOUT ROWID;
CREATE INDEX moved ON files (inode, device);
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, message TEXT, score REAL, extras TEXT);
CREATE TABLE outbox (sink TEXT, number INTEGER, refused TEXT, PRIMARY KEY (sink, number)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Event:
    """One message for the sinks.

    Attributes:
        message: JSON object without its id.
        score: Image score, for the drift monitor; None for everything but results.
        extras: Other values for the drift monitor.
    """

    message: dict[str, Any]
    score: float | None = None
    extras: dict[str, float] | None = None


@dataclass(frozen=True)
class Source:
    """Where an event comes from: a state of a file, or a position in a stream."""

    path: Path
    signature: Signature
    digest: str


class Journal:
    """What a watch must not forget. Safe for several threads; every method is one transaction.

    Args:
        path: The SQLite file, made if missing.
        sinks: Names of the sinks that new events are for.

    Raises:
        KeepADError: The file cannot be used, here or in any method.
    """

    def __init__(self, path: Path, sinks: Sequence[str]) -> None:
        self._path = path
        self._sinks = list(sinks)
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise KeepADError(f"the journal {path} cannot be opened: {error}; name another one.") from error
        with self._transaction("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL") as database:
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                about = {"keepad-watch": str(_FORMAT), "name": secrets.token_hex(4)}
                database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone():
                raise KeepADError(f"{path} is a database of something else; name another journal.")
        if self.about("keepad-watch") != str(_FORMAT):
            raise KeepADError(f"the journal {path} is from another version of KeepAD; name another one.")
        self.name = self.about("name") or ""

    def close(self) -> None:
        """Close the file; further calls fail."""
        with self._lock:
            self._database.close()

    def about(self, name: str) -> str | None:
        """A stored fact, or None."""
        with self._transaction() as database:
            row = database.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_about(self, name: str, value: str) -> None:
        """Store a fact."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    def knows(self, path: Path, signature: Signature) -> bool:
        """Whether this state of the file has its result: under this path, or under another one that it left."""
        with self._transaction() as database:
            own = database.execute("SELECT size, mtime FROM files WHERE path = ?", (os.fsencode(path),)).fetchone()
            if own == (signature.size, signature.mtime):
                return True
            found = _left(database, signature, "size = ? AND mtime = ?", (signature.size, signature.mtime))
            if found is None:
                return False
            _store(database, Source(path, signature, found))
            return True

    def holds(self, source: Source) -> bool:
        """Whether this content has its result, under this path or one that the file left; its state is noted then."""
        with self._transaction() as database:
            row = database.execute("SELECT digest FROM files WHERE path = ?", (os.fsencode(source.path),)).fetchone()
            if row != (source.digest,) and _left(database, source.signature, "digest = ?", (source.digest,)) is None:
                return False
            _store(database, source)
            return True

    def skip(self, source: Source) -> None:
        """Note a file that is to have no result."""
        with self._transaction() as database:
            _store(database, source)

    def record(self, events: Sequence[Event], source: Source | None = None, position: str | None = None) -> int:
        """Store events for all sinks, together with the file or the position in a stream that they come from.

        Returns:
            Number of the first event.
        """
        with self._transaction() as database:
            first = 0
            for event in events:
                extras = None if event.extras is None else json.dumps(event.extras)
                row = (json.dumps(event.message), event.score, extras)
                number = database.execute("INSERT INTO events (message, score, extras) VALUES (?, ?, ?)", row).lastrowid
                assert number is not None
                first = first or number
                for sink in self._sinks:
                    database.execute("INSERT INTO outbox VALUES (?, ?, NULL)", (sink, number))
            if source is not None:
                _store(database, source)
            if position is not None:
                database.execute("INSERT OR REPLACE INTO about VALUES ('position', ?)", (position,))
        return first

    def waiting(self, sink: str, count: int = 100) -> list[tuple[int, dict[str, Any]]]:
        """Numbers and messages that the sink has not got yet, oldest first, each with its id."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT number, message FROM outbox JOIN events USING (number) "
                "WHERE sink = ? AND refused IS NULL ORDER BY number LIMIT ?",
                (sink, count),
            ).fetchall()
        return [(number, {"id": f"{self.name}-{number}", **json.loads(message)}) for number, message in rows]

    def undelivered(self, sink: str) -> int:
        """Number of messages that the sink has not got."""
        with self._transaction() as database:
            return int(database.execute("SELECT COUNT(*) FROM outbox WHERE sink = ?", (sink,)).fetchone()[0])

    def delivered(self, sink: str, number: int) -> None:
        """Note that the sink has a message; one that all have is dropped."""
        with self._transaction() as database:
            database.execute("DELETE FROM outbox WHERE sink = ? AND number = ?", (sink, number))
            if not database.execute("SELECT 1 FROM outbox WHERE number = ?", (number,)).fetchone():
                database.execute("UPDATE events SET message = NULL WHERE number = ?", (number,))

    def refused(self, sink: str, number: int, reason: str) -> None:
        """Put a message aside that the sink does not take."""
        with self._transaction() as database:
            database.execute("UPDATE outbox SET refused = ? WHERE sink = ? AND number = ?", (reason, sink, number))

    def try_refused_again(self) -> None:
        """Line up the messages that were put aside."""
        with self._transaction() as database:
            database.execute("UPDATE outbox SET refused = NULL")

    def scores(self, after: int) -> list[tuple[int, float, dict[str, float]]]:
        """Numbers, scores and extras of all results after an event, in order."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT number, score, extras FROM events WHERE number > ? AND score IS NOT NULL ORDER BY number",
                (after,),
            ).fetchall()
        return [(number, score, json.loads(extras or "{}")) for number, score, extras in rows]

    def last(self) -> int:
        """Number of the last event; 0 before the first."""
        with self._transaction() as database:
            return int(database.execute("SELECT COALESCE(MAX(number), 0) FROM events").fetchone()[0])

    @contextmanager
    def _transaction(self, *before: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                for statement in before:
                    self._database.execute(statement)
                self._database.execute("BEGIN IMMEDIATE")
                try:
                    yield self._database
                except BaseException:
                    self._database.execute("ROLLBACK")
                    raise
                self._database.execute("COMMIT")
            except (sqlite3.Error, ValueError) as error:  # ValueError: what should be JSON is not
                raise KeepADError(
                    f"the journal {self._path} cannot be used: {error}; free some space, or name another journal."
                ) from error


def _left(database: sqlite3.Connection, own: Signature, condition: str, values: tuple[object, ...]) -> str | None:
    """The digest of the same file under a path where it is no more, which is forgotten; None where there is none."""
    rows = database.execute(
        f"SELECT path, digest FROM files WHERE inode = ? AND device = ? AND {condition}",
        (str(own.inode), str(own.device), *values),
    ).fetchall()
    for path, digest in rows:
        if not os.path.lexists(path):
            database.execute("DELETE FROM files WHERE path = ?", (path,))
            return str(digest)
    return None


def _store(database: sqlite3.Connection, source: Source) -> None:
    own = source.signature
    database.execute(
        "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
        # Text: inodes of some file systems do not fit into SQLite's signed integers.
        (os.fsencode(source.path), own.size, own.mtime, str(own.device), str(own.inode), source.digest),
    )
