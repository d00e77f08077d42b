"""Sorted folder listings without hidden files; names are matched in any case."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from keepad.images import SUFFIXES

_NAMES_SHOWN = 6


def entries_in(folder: Path | None) -> list[Path]:
    """The entries of the folder that are not hidden; empty if it is missing or not readable."""
    if folder is None:
        return []
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []


def folders_in(folder: Path | None) -> list[Path]:
    """The sub-folders of the folder."""
    return [entry for entry in entries_in(folder) if entry.is_dir()]


def images_in(folder: Path | None) -> list[Path]:
    """The image files in the folder itself."""
    return [entry for entry in entries_in(folder) if entry.suffix.lower() in SUFFIXES and entry.is_file()]


def folder_named(folder: Path | None, *names: str) -> Path | None:
    """The sub-folder with one of the names, in any case; earlier names take precedence."""
    folders = {entry.name.lower(): entry for entry in reversed(folders_in(folder))}
    return next((folders[name.lower()] for name in names if name.lower() in folders), None)


def own_name(path: Path) -> str:
    """The last component of the absolute path, so that "." has a name too; links are not followed."""
    return os.path.basename(os.path.abspath(path))


def by_stem(files: Sequence[Path], *endings: str) -> dict[str, Path]:
    """The files by their stem without the ending, which is the image's stem; earlier endings take precedence."""
    files_by_stem: dict[str, Path] = {}
    for ending in endings:
        for file in files:
            if file.stem.lower().endswith(ending.lower()):
                files_by_stem.setdefault(file.stem[: len(file.stem) - len(ending)], file)
    return files_by_stem


def counted(number: int, noun: str) -> str:
    """The number and the noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Sequence[str]) -> str:
    """The first few names, joined, and the number of the others."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
