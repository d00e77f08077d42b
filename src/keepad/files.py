"""Files that are either whole or not there, and folders that can be written to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from keepad.errors import KeepADError


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A place beside `path` to write to; moved onto it at the end, so a kill or a full disk leaves no half of a file.

    Args:
        path: The file.
        durable: Wait until the disk has it, so that not even a power cut leaves half of it; slow for many files.

    Raises:
        OSError: Whatever writing raised; nothing is left behind then.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if durable:
            with partial.open("rb+") as written:
                os.fsync(written.fileno())  # or a power cut could leave the new name with nothing behind it
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def writable_folder(path: Path) -> Path:
    """The folder, made if need be and proven writable, or a KeepADError."""
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
