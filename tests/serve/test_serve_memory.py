"""Settings of glibc that keep the service's memory flat."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from keepad.serve import memory

ARENAS = """
import ctypes, sys, threading
from keepad.serve.memory import share_arenas
if sys.argv[1] == "limited" and not share_arenas():
    sys.exit(3)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
together = threading.Barrier(6)
heaps = set()
def take():
    together.wait()
    heaps.add(libc.malloc(5000) >> 26)  # an arena's heap lies within 64 MB
    together.wait()
threads = [threading.Thread(target=take) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(heaps))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="arenas are glibc's")
def test_threads_share_two_arenas() -> None:
    def heaps(how: str) -> int:
        own = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name}
        done = subprocess.run([sys.executable, "-c", ARENAS, how], capture_output=True, text=True, check=True, env=own)
        return int(done.stdout)

    assert heaps("limited") <= 2 < heaps("as it is")


def test_what_the_operator_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "16")
    assert not memory.share_arenas()


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not memory.share_arenas()
