"""Atomic file writes, writable folders and locks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import platformdirs

from keepad.errors import KeepADError


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it at the end, so that `path` is never half written.

    Args:
        path: The file.
        durable: Flush to disk first, which also survives a power cut; slow for many files.

    Raises:
        OSError: The file cannot be written; the temporary file is removed.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if durable:
            with partial.open("rb+") as written:
                os.fsync(written.fileno())
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text file as a whole, or raise an OSError; see `replacing`."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def writable_folder(path: Path) -> Path:
    """The folder, created if missing and checked to be writable.

    Raises:
        KeepADError: The folder cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".keepad-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise KeepADError(f"the folder {path} cannot be written to: {error.strerror}; choose another one.") from error
    return path


def cache_folder() -> Path:
    """The user's cache: $KEEPAD_CACHE if set, else the platform's folder for caches."""
    chosen = os.environ.get("KEEPAD_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("keepad", appauthor=False))


@contextlib.contextmanager
def locked(folder: Path, name: str = ".keepad.lock", *, patience: float = 0) -> Iterator[None]:
    """Holds a folder for this process; a killed process holds nothing.

    Args:
        folder: An existing folder.
        name: Lock file in it; gone afterwards.
        patience: Seconds to wait for another process that holds it.

    Raises:
        KeepADError: Another process holds the folder.
    """
    path, until = folder / name, time.monotonic() + patience
    try:
        file = _open_locked(path, until)
    except BlockingIOError:
        raise KeepADError(
            f"{folder} is in use by {_holder(path)}; wait until it ends, or choose another one."
        ) from None
    except OSError as error:
        raise KeepADError(f"{path} cannot be locked: {error.strerror}; choose another folder.") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while it is locked still, so that nobody locks a file that is about to go
        file.close()


def _open_locked(path: Path, until: float) -> IO[bytes]:
    """The lock file, locked; BlockingIOError where another process has it until then."""
    while True:
        file = path.open("a+b")
        try:
            while not _lock(file):
                if time.monotonic() >= until:
                    raise BlockingIOError
                time.sleep(0.2)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    file.truncate(0)
                    file.write(str(os.getpid()).encode())
                    file.flush()
                    return file
        except BaseException:
            file.close()
            raise
        file.close()  # its owner removed it between opening and locking


def _lock(file: IO[bytes]) -> bool:
    """Whether the file is locked now; another process may have it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
    else:
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _holder(path: Path) -> str:
    try:
        number = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        number = ""
    return f"another keepad (process {number})" if number.isdecimal() else "another keepad"
