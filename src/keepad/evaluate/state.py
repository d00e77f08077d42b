"""State of an evaluation on disk, from which a killed run goes on.

Each class has a .jsonl with one line for every finished image, and a .npz with the pixel metrics of the first so many
of these lines. The .npz is replaced as a whole and stores how many lines it covers; later lines are dropped
when the state is loaded, so the two never disagree.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keepad.data import Sample
from keepad.errors import KeepADError
from keepad.files import replace_text, replacing
from keepad.metrics import PixelMetrics

Row = dict[str, Any]

_FINGERPRINT = "fingerprint.json"
# Names of the fingerprint's fields in the refusal.
_CALLED = {
    "checkpoint": "checkpoint",
    "backbone": "backbone",
    "image_size": "image size",
    "framing": "shapes, tiles or views",
    "points": "operating points",
    "data": "images",
    "code": "code of KeepAD",
}


def key_of(path: Path, sample: Sample) -> str:
    """A file's path from the data set's root; never absolute, even if the file lies elsewhere."""
    return Path(os.path.relpath(path, sample.root)).as_posix()


def open_folder(folder: Path, fingerprint: dict[str, Any], *, fresh: bool) -> None:
    """Make the folder ready for an evaluation with this fingerprint.

    Raises:
        KeepADError: It holds the state of another evaluation, and `fresh` does not allow to drop it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / _FINGERPRINT
    if fresh or not file.exists():
        # The fingerprint goes last: without it the other files could belong to any evaluation.
        for old in (*folder.glob("*.jsonl"), *folder.glob("*.npz"), *folder.glob("*.part"), file):
            old.unlink(missing_ok=True)
    try:
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except ValueError:
        stored = {}
    if stored is None:
        replace_text(file, json.dumps(fingerprint, indent=1))
        return
    differs = [called for name, called in _CALLED.items() if stored.get(name) != fingerprint.get(name)]
    if differs:
        raise KeepADError(
            f"{folder.parent} holds an evaluation with other {' and '.join(differs)}; choose another folder, "
            "or start over with --fresh."
        )


class ClassState:
    """The finished images of one class, on disk and in `rows`, with the pixel metrics of every variant.

    Args:
        folder: Where the state is kept.
        number: Position of the class in the evaluation; keeps file names distinct.
        name: Suite and class.
        points: Names of the variants.
    """

    def __init__(self, folder: Path, number: int, name: tuple[str, str], points: Sequence[str]) -> None:
        readable = re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(name))
        self._lines = folder / f"{number:03d}-{readable}.jsonl"
        self._arrays = folder / f"{number:03d}-{readable}.npz"
        self._points = list(points)
        self._saved, self.rows = self._load()
        self.pixels: dict[str, PixelMetrics] = {}

    def _load(self) -> tuple[int, list[Row]]:
        """The number of lines that the pixel metrics cover, and these lines; none of a damaged class."""
        covered = 0
        if self._arrays.exists():
            try:
                with np.load(self._arrays) as arrays:
                    covered = int(arrays["lines"])
                    for name in arrays.files:  # a member's checksum is only verified when it is loaded
                        arrays[name]
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
                covered = 0
        content = self._lines.read_bytes() if self._lines.exists() else b""
        lines = content.split(b"\n")[:-1][:covered]  # after the last line end comes a torn line
        try:
            rows = [json.loads(line) for line in lines]
        except ValueError:
            rows = []
        if len(rows) < covered:
            covered, rows, lines = 0, [], []
        if content:
            os.truncate(self._lines, sum(len(line) + 1 for line in lines))
        return covered, rows

    def begin(self) -> None:
        """Load the pixel metrics, 12 MB per variant."""
        self.pixels = {point: PixelMetrics() for point in self._points}
        if not self._saved:
            return
        with np.load(self._arrays) as arrays:
            for number, metrics in enumerate(self.pixels.values()):
                prefix = f"{number}."
                names = [name for name in arrays.files if name.startswith(prefix)]
                metrics.load_state_dict({name.removeprefix(prefix): arrays[name] for name in names})

    def end(self) -> None:
        """Free the pixel metrics."""
        self.pixels = {}

    def append(self, rows: Sequence[Row]) -> None:
        """Add the lines of finished images, whose maps are in the pixel metrics."""
        with self._lines.open("ab") as file:
            file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        self.rows += rows

    @property
    def unsaved(self) -> int:
        """Images that would be computed again after a kill."""
        return len(self.rows) - self._saved

    def save(self, *, small: bool = False) -> None:
        """Make everything so far survive a kill; `small` takes longer and needs a fraction of the space."""
        arrays: dict[str, Any] = {
            f"{number}.{name}": array
            for number, metrics in enumerate(self.pixels.values())
            for name, array in metrics.state_dict().items()
        }
        with self._lines.open("ab") as file:
            os.fsync(file.fileno())  # the lines must be on disk before the .npz that covers them
        with replacing(self._arrays) as partial, partial.open("wb") as file:
            (np.savez_compressed if small else np.savez)(file, lines=np.array(len(self.rows)), **arrays)
        self._saved = len(self.rows)
