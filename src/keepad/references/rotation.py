"""Rotated copies of references: the pixels turned, and the cells that they came from."""

from __future__ import annotations

import numpy as np
from PIL import Image

from keepad.arrays import Array


def rotated(pixels: Array, angle: float) -> Array:
    """The image, (H, W, 3) uint8, turned about its centre; what comes in from outside is mirrored."""
    height, width = pixels.shape[:2]
    top, left = height // 2, width // 2
    padded = np.pad(pixels, ((top, top), (left, left), (0, 0)), mode="reflect")
    turned = Image.fromarray(padded).rotate(angle, Image.Resampling.BICUBIC)
    return np.array(turned)[top : top + height, left : left + width]


def turned_back(cells: Array, grid: tuple[int, int], angle: float) -> Array:
    """The cells of the upright image from which cells of the rotated one came, as near as the grid allows."""
    rows, columns = grid
    down, right = cells // columns - (rows - 1) / 2, cells % columns - (columns - 1) / 2
    sine, cosine = np.sin(np.radians(angle)), np.cos(np.radians(angle))
    row = np.round(cosine * down + sine * right + (rows - 1) / 2).clip(0, rows - 1)
    column = np.round(cosine * right - sine * down + (columns - 1) / 2).clip(0, columns - 1)
    back: Array = (row * columns + column).astype(np.int64)
    return back
