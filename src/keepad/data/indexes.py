"""Layouts that list their images in a file: CSV or JSON.

Each reader returns None unless the path is in its layout.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from keepad.data.listing import counted, own_name
from keepad.data.samples import GOOD, SPLITS, UNNAMED_DEFECT, Contents, Sample
from keepad.errors import KeepADError

_LABELS = {"0": 0, "1": 1, "normal": 0, "anomaly": 1}


class _Row(NamedTuple):
    suite: str
    cls: str
    split: str
    defect: str
    label: int
    image: str
    mask: str


def read_index(path: Path) -> Contents | None:
    """Samples of a CSV with the columns class, split, label, image and optionally suite, defect and mask."""
    file = path / "index.csv" if path.is_dir() else path
    return _read_csv(file, file.parent, ("class", "split", "label", "image"))


def read_visa(path: Path) -> Contents | None:
    """Samples of VisA: split_csv/1cls.csv lists the images of all objects."""
    return _read_csv(path / "split_csv" / "1cls.csv", path, ("object", "split", "label", "image", "mask"))


def read_meta(path: Path) -> Contents | None:
    """Samples of AnomalyCLIP's meta.json: lists of images by split (train or Train, test or Test) and class."""
    file = path / "meta.json" if path.is_dir() else path
    if file.suffix.lower() != ".json" or not file.is_file():
        return None
    try:
        meta = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return None
    items = meta.items() if isinstance(meta, dict) else ()
    splits = {key.lower(): value for key, value in items if key.lower() in SPLITS and isinstance(value, dict)}
    if not splits:
        return None
    rows = [
        _meta_row(file, split, cls, entry)
        for split, classes in splits.items()
        for cls, entries in classes.items()
        for entry in entries or ()
    ]
    return _existing(file, file.parent, rows)


def _meta_row(file: Path, split: str, cls: str, entry: Any) -> _Row:
    try:
        label = 1 if int(entry["anomaly"]) else 0
        defect, mask = entry.get("specie_name") or "", entry.get("mask_path") or ""
        return _Row(own_name(file.parent), cls, split, defect, label, str(entry["img_path"]), mask)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KeepADError(
            f"'{file}' has an entry for {cls} without a usable img_path or anomaly; generate the file again."
        ) from error


def _read_csv(file: Path, root: Path, columns: Sequence[str]) -> Contents | None:
    """Samples of a CSV that has the columns, the class's first; None if the file is no such CSV."""
    lines = _csv_lines(file, columns)
    if lines is None:
        return None
    rows = []
    for number, line in lines:
        label, split = line["label"], line["split"].lower()
        if label not in _LABELS:
            raise KeepADError(f"Line {number} of '{file}' has the label '{label}'; write one of {', '.join(_LABELS)}.")
        if split not in SPLITS:
            raise KeepADError(
                f"Line {number} of '{file}' has the split '{line['split']}'; write one of {', '.join(SPLITS)}."
            )
        suite, defect, mask = (line.get(name, "") for name in ("suite", "defect", "mask"))
        rows.append(_Row(suite or own_name(root), line[columns[0]], split, defect, _LABELS[label], line["image"], mask))
    return _existing(file, root, rows)


def _csv_lines(file: Path, columns: Iterable[str]) -> list[tuple[int, dict[str, str]]] | None:
    """Line numbers and stripped cells, or None if the file is no CSV with these columns."""
    if file.suffix.lower() != ".csv" or not file.is_file():
        return None
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            names = reader.fieldnames or ()
            if not set(columns) <= set(names):
                return None
            return [(reader.line_num, {name: (line[name] or "").strip() for name in names}) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error):
        return None


def _existing(file: Path, root: Path, rows: Sequence[_Row]) -> Contents:
    """Samples of the rows whose image exists."""
    skip = _leading_parts(root, (row.image for row in rows))
    samples: list[Sample] = []
    missing: list[str] = []
    for row in rows:
        image = root.joinpath(*_parts(row.image)[skip:])
        if not image.is_file():
            missing.append(row.image)
            continue
        mask = root.joinpath(*_parts(row.mask)[skip:]) if row.label and row.mask else None
        if mask is not None and not mask.is_file():
            mask = None
        defect = (row.defect or UNNAMED_DEFECT) if row.label else GOOD
        samples.append(Sample(row.suite, row.cls, row.split, defect, row.label, image, mask, root))
    problems = []
    if missing:
        problems.append(
            f"{file.name} lists {counted(len(missing), 'image')} that cannot be found, such as {missing[0]}; left out."
        )
    return Contents(samples, problems)


def _leading_parts(root: Path, listed: Iterable[str]) -> int:
    """Number of leading path components that stand for the root; some indexes include it."""
    for text in listed:
        parts = _parts(text)
        # Absolute paths are tried whole last, so that keys are relative to the root wherever possible.
        order = [*range(1, len(parts)), 0] if parts[:1] == ("/",) else range(len(parts))
        for skip in order:
            if root.joinpath(*parts[skip:]).is_file():
                return skip
    return 0


def _parts(text: str) -> tuple[str, ...]:
    return PurePosixPath(text.replace("\\", "/")).parts
