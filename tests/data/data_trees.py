"""Small data sets on disk, written down as the lists of files that their archives unpack to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from keepad.data import Dataset

WIDTH, HEIGHT = 6, 4


def paint(path: Path, *, defect: bool = False, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Path:
    """Writes a black picture, with one white pixel if it is the mask of a defect."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((size[1], size[0]), dtype=np.uint8)
    pixels[0, 0] = 255 if defect else 0
    # By format, since Pillow does not know every spelling of a suffix.
    Image.fromarray(pixels).save(path, {".jpg": "JPEG", ".bmp": "BMP", ".tif": "TIFF"}.get(path.suffix.lower(), "PNG"))
    return path


def grow(root: Path, files: str) -> Path:
    """Writes a picture for each line; a line that ends in "!" is a mask with a defect."""
    for line in filter(None, map(str.strip, files.splitlines())):
        paint(root / line.rstrip(" !"), defect=line.endswith("!"))
    return root


def seen(dataset: Dataset) -> list[str]:
    """One line for each sample: class, split, defect, label, image, and its mask if it has one."""
    lines = []
    for sample in dataset.samples:
        mask = f" <- {sample.mask.relative_to(dataset.root).as_posix()}" if sample.mask else ""
        lines.append(f"{sample.cls} {sample.split} {sample.defect} {sample.label} {sample.key}{mask}")
    return lines
