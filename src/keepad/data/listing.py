"""What a folder holds, sorted, without hidden files, and whatever the case of its names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keepad.images import SUFFIXES

_NAMES_SHOWN = 6


def entries_in(folder: Path | None) -> list[Path]:
    """Everything in the folder that is not hidden; nothing if it is missing or may not be read."""
    if folder is None:
        return []
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []


def folders_in(folder: Path | None) -> list[Path]:
    """The folders in the folder."""
    return [entry for entry in entries_in(folder) if entry.is_dir()]


def images_in(folder: Path | None) -> list[Path]:
    """The image files in the folder itself."""
    return [entry for entry in entries_in(folder) if entry.suffix.lower() in SUFFIXES and entry.is_file()]


def folder_named(folder: Path | None, *names: str) -> Path | None:
    """The first sub-folder that has one of the names, in any case; earlier names win."""
    found = {entry.name.lower(): entry for entry in reversed(folders_in(folder))}
    return next((found[name.lower()] for name in names if name.lower() in found), None)


def by_stem(files: Sequence[Path], *endings: str) -> dict[str, Path]:
    """The files by the stem of the image each belongs to: their own without its ending; earlier endings win."""
    found: dict[str, Path] = {}
    for ending in endings:
        for file in files:
            if file.stem.lower().endswith(ending.lower()):
                found.setdefault(file.stem[: len(file.stem) - len(ending)], file)
    return found


def counted(number: int, thing: str) -> str:
    """The number and the thing, in the plural where it is not one."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Sequence[str]) -> str:
    """The first of the names and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
