"""Arrivals: which new files are completely written."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Signature:
    """What tells two states of a file apart without reading it."""

    size: int
    mtime: int
    device: int
    inode: int


def signature_of(path: Path) -> Signature | None:
    """The state of a regular file, or None where there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Signature(found.st_size, found.st_mtime_ns, found.st_dev, found.st_ino)


def is_written(path: Path) -> bool:
    """Whether some process is known to have the file open for writing; only Linux can tell, on local disks."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The kernel grants a read lease only while nobody has the file open for writing.
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:  # not our file, or a file system without leases: size and time have to do
        return False
    finally:
        os.close(descriptor)
    return False


@dataclass
class _Waiting:
    signature: Signature | None
    since: float
    needed: float


class Arrivals:
    """Files that were seen and may still be in the making.

    Args:
        settle: Seconds for which size and time of a file must stay the same.
        clock: Seconds, never going back.
    """

    def __init__(self, settle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle = settle
        self._clock = clock
        self._waiting: dict[Path, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def see(self, path: Path) -> None:
        """Note a file that is new or changed; one that is noted already keeps its place."""
        if path not in self._waiting:
            self._waiting[path] = _Waiting(signature_of(path), self._clock(), self._settle)

    def wait_longer(self, path: Path, seconds: float) -> bool:
        """Keep a ready file that cannot be read until it was the same for `seconds`; False, and dropped, if it was."""
        entry = self._waiting[path]
        if self._clock() - entry.since >= seconds:
            del self._waiting[path]
            return False
        entry.needed = seconds
        return True

    def forget(self, path: Path) -> None:
        """Drop a file that was dealt with."""
        self._waiting.pop(path, None)

    def ready(self) -> list[Path]:
        """The files that are complete, first seen first; they stay noted until `forget`."""
        now, ready = self._clock(), []
        for path, entry in list(self._waiting.items()):
            signature = signature_of(path)
            if signature is None:
                del self._waiting[path]
            elif signature != entry.signature or is_written(path):
                self._waiting[path] = _Waiting(signature, now, self._settle)
            elif now - entry.since >= entry.needed:
                ready.append(path)
        return ready
