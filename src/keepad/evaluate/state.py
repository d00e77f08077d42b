"""What an evaluation keeps on disk while it runs, so that a killed one goes on where it stopped.

Each class has a .jsonl with one line for every finished image, and a .npz with the pixel metrics of the first so many
of these lines. The .npz is moved into place whole and says how many lines it covers; whatever comes after them is
dropped when the state is read again, so the two never disagree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from keepad.data import Sample
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.metrics import PixelMetrics
from keepad.presets import OperatingPoint
from keepad.version import __version__

Row = dict[str, Any]

_FINGERPRINT = "fingerprint.json"
# What a difference in the fingerprint is called in the refusal.
_CALLED = {
    "checkpoint": "checkpoint",
    "backbone": "backbone",
    "image_size": "image size",
    "points": "operating points",
    "data": "images",
    "version": "version of KeepAD",
}


def key_of(path: Path, sample: Sample) -> str:
    """A file's path from the data set's root; never an absolute one, even if the file lies elsewhere."""
    return Path(os.path.relpath(path, sample.root)).as_posix()


def fingerprint(model: Detector, points: Sequence[OperatingPoint], samples: Iterable[Sample]) -> dict[str, Any]:
    """What must be the same for two runs to give the same numbers, ready for JSON."""
    data = hashlib.sha256()
    for sample in samples:
        mask = None if sample.mask is None else key_of(sample.mask, sample)
        line = [sample.suite, sample.cls, key_of(sample.image, sample), sample.label, mask]
        data.update(f"{json.dumps(line)}\n".encode())
    return {
        **model.digests(),
        "image_size": list(model.image_size),
        "points": json.loads(json.dumps([asdict(point) for point in points])),  # as it will be read again
        "data": data.hexdigest(),
        "version": __version__,
    }


def open_folder(folder: Path, found: dict[str, Any], *, fresh: bool) -> None:
    """Make the folder ready for a run with this fingerprint.

    Raises:
        KeepADError: It holds the state of another run, and `fresh` does not allow to drop it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / _FINGERPRINT
    if fresh or not file.exists():
        # The fingerprint goes last: without it nobody would know whose numbers the other files hold.
        for old in (*folder.glob("*.jsonl"), *folder.glob("*.npz"), *folder.glob("*.part"), file):
            old.unlink(missing_ok=True)
    try:
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except ValueError:
        stored = {}
    if stored is None:
        with replacing(file) as partial:
            partial.write_text(json.dumps(found, indent=1), encoding="utf-8")
        return
    differs = [called for name, called in _CALLED.items() if stored.get(name) != found[name]]
    if differs:
        raise KeepADError(
            f"{folder.parent} holds an evaluation with other {' and '.join(differs)}; choose another folder, "
            "or start over with --fresh."
        )


class ClassState:
    """The finished images of one class, on disk and in `rows`, with the pixel metrics of every operating point.

    Args:
        folder: Where the state is kept.
        number: Place of the class in the run; keeps file names distinct.
        name: Suite and class.
        points: Names of the operating points.
    """

    def __init__(self, folder: Path, number: int, name: tuple[str, str], points: Sequence[str]) -> None:
        readable = re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(name))
        self._lines = folder / f"{number:03d}-{readable}.jsonl"
        self._arrays = folder / f"{number:03d}-{readable}.npz"
        self._points = list(points)
        self._saved, self.rows = self._read()
        self.pixels: dict[str, PixelMetrics] = {}

    def _read(self) -> tuple[int, list[Row]]:
        """How many lines the pixel metrics cover, and these lines; a damaged class begins anew."""
        covered = 0
        if self._arrays.exists():
            try:
                with np.load(self._arrays) as arrays:
                    covered = int(arrays["lines"])
                    for name in arrays.files:  # a member's checksum is only looked at when it is read
                        arrays[name]
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
                covered = 0
        content = self._lines.read_bytes() if self._lines.exists() else b""
        lines = content.split(b"\n")[:-1][:covered]  # what follows the last line end is a torn line
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
        """Take the pixel metrics into memory, where they need 12 MB a point."""
        self.pixels = {point: PixelMetrics() for point in self._points}
        if not self._saved:
            return
        with np.load(self._arrays) as arrays:
            for number, metrics in enumerate(self.pixels.values()):
                prefix = f"{number}."
                names = [name for name in arrays.files if name.startswith(prefix)]
                metrics.load_state_dict({name.removeprefix(prefix): arrays[name] for name in names})

    def end(self) -> None:
        """Let go of the pixel metrics."""
        self.pixels = {}

    def append(self, rows: Sequence[Row]) -> None:
        """Add the lines of finished images, whose maps the pixel metrics have taken in."""
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
            os.fsync(file.fileno())  # the lines must be there before something says that it covers them
        with replacing(self._arrays) as partial, partial.open("wb") as file:
            (np.savez_compressed if small else np.savez)(file, lines=np.array(len(self.rows)), **arrays)
        self._saved = len(self.rows)
