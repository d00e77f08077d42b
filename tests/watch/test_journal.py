"""Journal: what has its result, what is still to be delivered, and what happens to a damaged file."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from keepad.errors import KeepADError
from keepad.watch.arrivals import signature_of
from keepad.watch.journal import Event, Journal, Source


def source_of(path: Path, digest: str = "d") -> Source:
    signature = signature_of(path)
    assert signature is not None
    return Source(path, signature, digest)


def test_a_file_is_known_by_its_state_wherever_it_moves(tmp_path: Path) -> None:
    journal, path = Journal(tmp_path / "j.sqlite", []), tmp_path / "a.png"
    path.write_bytes(b"one")
    own = source_of(path)
    assert not journal.knows(path, own.signature)
    journal.record([Event({"event": "result"})], own)
    assert journal.knows(path, own.signature)
    moved = tmp_path / "b.png"
    path.rename(moved)
    assert journal.knows(moved, own.signature)
    link = tmp_path / "c.png"
    os.link(moved, link)  # now there are two files
    assert not journal.knows(link, own.signature)
    path.write_bytes(b"another file in the old place")
    assert not journal.knows(path, source_of(path).signature)


def test_the_same_content_with_another_time_is_the_same_file(tmp_path: Path) -> None:
    journal, path = Journal(tmp_path / "j.sqlite", []), tmp_path / "a.png"
    path.write_bytes(b"one")
    journal.record([Event({})], source_of(path, "digest"))
    os.utime(path, ns=(5, 5))
    touched = source_of(path, "digest")
    assert not journal.knows(path, touched.signature)
    assert journal.holds(touched)
    assert journal.knows(path, touched.signature)
    assert not journal.holds(replace(touched, digest="other"))


def test_messages_wait_for_every_sink_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    journal = Journal(path, ["a", "b"])
    assert journal.record([Event({"n": 1}, 0.5, {"keep": 0.2}), Event({"n": 2})]) == 1
    journal.delivered("a", 1)
    journal.refused("b", 1, "no")
    journal.close()
    journal = Journal(path, ["a", "b"])
    assert journal.waiting("a") == [(2, {"id": f"{journal.name}-2", "n": 2})]
    assert [number for number, _ in journal.waiting("b")] == [2]
    assert journal.undelivered("b") == 2
    journal.try_refused_again()
    assert [number for number, _ in journal.waiting("b")] == [1, 2]
    assert journal.scores(0) == [(1, 0.5, {"keep": 0.2})]
    journal.delivered("b", 1)
    assert journal.scores(0) == [(1, 0.5, {"keep": 0.2})]  # the score outlives the message
    assert journal.last() == 2


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + bytes(200)])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j.sqlite").write_bytes(content)
    with pytest.raises(KeepADError, match=r"j\.sqlite.*name another"):
        Journal(tmp_path / "j.sqlite", [])


def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE orders (number INTEGER)")
    with pytest.raises(KeepADError, match="a database of something else"):
        Journal(path, [])
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("orders",)]
