"""Locks of folders: one process at a time, and a killed one leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from keepad.errors import KeepADError
from keepad.files import locked

_HOLD = """
import sys, time
from pathlib import Path
from keepad.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_process_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(KeepADError, match=rf"in use by another keepad \(process {process.pid}\)"), locked(tmp_path):
        pass
    process.kill()
    process.wait()
    assert (tmp_path / ".keepad.lock").exists()
    with locked(tmp_path):
        assert (tmp_path / ".keepad.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_locked_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / ".keepad.lock").mkdir()
    with pytest.raises(KeepADError, match="cannot be locked"), locked(tmp_path):
        pass
