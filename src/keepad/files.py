"""Atomic file writes and writable folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

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
