"""What a run over a folder keeps of itself until it is finished, so that the same run goes on after a kill."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keepad.detector import Detector
from keepad.files import replace_text, writable_folder

_FOLDER = ".unfinished"
_RUN = "run.json"


def identity_of(detector: Detector, paths: Sequence[Path], settings: dict[str, Any]) -> str:
    """A digest that is equal for runs with the same results: of detector, files (by size and time) and settings."""
    profile = detector.profile
    files = hashlib.sha256()
    for path in paths:
        with suppress(OSError):
            state = path.stat()
            files.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    values = {
        "detector": type(detector).__name__,
        "digests": detector.digests(),
        "point": asdict(detector.point),
        "precision": detector.precision,
        "input": [detector.image_size, detector.framing.description()],
        "thresholds": detector.thresholds,
        "profile": None if profile is None else [profile.history, [image.digest for image in profile.images]],
        "files": files.hexdigest(),
        "settings": settings,
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


class Unfinished:
    """The folder of an unfinished run, beside its results.

    Args:
        out: Folder of the results.
        identity: Digest of the run.
        lines: File with a line for every image that is done.
        paths: The images, in the order of the lines.

    Attributes:
        folder: Where the writers keep what they need to go on.
        rows: What the lines of an earlier start say; nothing if it was another run.
    """

    def __init__(self, out: Path, identity: str, lines: Path, paths: Sequence[Path]) -> None:
        self.folder = out / _FOLDER
        self.rows: list[dict[str, Any]] = []
        if self._stored() == identity:
            self.rows = _whole_lines(lines, paths)
            return
        self.remove()
        lines.unlink(missing_ok=True)
        writable_folder(self.folder)
        # Last of all: lines belong to the run whose name is here.
        replace_text(self.folder / _RUN, json.dumps({"run": identity}))

    def remove(self) -> None:
        """The run is finished: forget it."""
        with suppress(FileNotFoundError):
            (self.folder / _RUN).unlink()  # first of all: without it the rest means nothing
            shutil.rmtree(self.folder)

    def _stored(self) -> str | None:
        try:
            stored = json.loads((self.folder / _RUN).read_text(encoding="utf-8"))
            return str(stored["run"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


def _whole_lines(lines: Path, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The rows of all complete lines, which belong to the first paths; what follows them is cut off."""
    rows: list[dict[str, Any]] = []
    end = 0
    if not lines.exists():
        return rows
    with lines.open("rb") as file:
        for line, path in zip(file, paths, strict=False):
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict) or row.get("path") != str(path):
                break
            rows.append({key: value for key, value in row.items() if key != "regions"})
            end += len(line)
    os.truncate(lines, end)
    return rows


class Records:
    """JSON objects that are appended to a file, for a writer that may be killed; kept nowhere without a path."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a+b")

    def restore(self, count: int) -> list[dict[str, Any]] | None:
        """The first so many, the others dropped; None where there are fewer."""
        records: list[dict[str, Any]] = []
        if self._file is None:
            return records
        self._file.seek(0)
        end = 0
        for line in self._file:
            if len(records) == count or not line.endswith(b"\n"):
                break
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError):
                break
            end += len(line)
        if len(records) < count:
            return None
        self._file.truncate(end)
        return records

    def append(self, record: dict[str, Any]) -> None:
        """Add one; it survives a kill."""
        if self._file is not None:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, which stays."""
        if self._file is not None:
            self._file.close()
