"""Arrivals: a file is ready when it is complete, not before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from keepad.watch.arrivals import Arrivals, is_written, signature_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_file_is_ready_once_it_stays_the_same(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "a.png"
    arrivals = Arrivals(1.0, clock)
    path.write_bytes(b"half")
    arrivals.see(path)
    assert arrivals.ready() == []
    clock.now = 0.9
    path.write_bytes(b"half and the rest")
    assert arrivals.ready() == []
    clock.now = 1.8
    assert arrivals.ready() == []
    clock.now = 2.0
    assert arrivals.ready() == [path]
    assert arrivals.ready() == [path]  # until it is dealt with
    arrivals.forget(path)
    assert arrivals.ready() == []
    assert len(arrivals) == 0


def test_an_unreadable_file_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "a.png"
    arrivals = Arrivals(1.0, clock)
    path.write_bytes(b"half")
    arrivals.see(path)
    clock.now = 1.0
    assert arrivals.ready() == [path]
    assert arrivals.wait_longer(path, 5.0)
    clock.now = 4.9
    assert arrivals.ready() == []
    clock.now = 5.0
    assert arrivals.ready() == [path]
    assert not arrivals.wait_longer(path, 5.0)
    assert len(arrivals) == 0


def test_more_bytes_start_the_wait_anew(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "a.png"
    arrivals = Arrivals(1.0, clock)
    path.write_bytes(b"half")
    arrivals.see(path)
    clock.now = 1.0
    assert arrivals.ready() == [path]
    arrivals.wait_longer(path, 5.0)
    path.write_bytes(b"whole file")
    arrivals.ready()
    clock.now = 2.0
    assert arrivals.ready() == [path]


def test_files_that_go_away_are_dropped(tmp_path: Path) -> None:
    arrivals, path = Arrivals(0.0, Clock()), tmp_path / "a.png"
    arrivals.see(path)
    assert arrivals.ready() == []
    assert len(arrivals) == 0
    assert signature_of(path) is None
    assert signature_of(tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who writes")
def test_a_file_that_is_open_for_writing_is_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    arrivals = Arrivals(0.0, Clock())
    with path.open("wb") as file:
        file.write(b"the size is final already")
        file.flush()
        arrivals.see(path)
        assert is_written(path)
        assert arrivals.ready() == []
    assert not is_written(path)
    arrivals.ready()
    assert arrivals.ready() == [path]
