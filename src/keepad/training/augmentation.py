"""Collage-and-crop augmentation: views of labelled images made of real pixels only.

A collage tiles images of one class, a crop enlarges one cell of an image; mask and label follow the pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.data import Sample, load_mask
from keepad.images import read_image, to_input

_SIDES = (2, 3)  # cells along one side of a collage, or of the grid a crop is cut from


@dataclass(frozen=True)
class LabelledImage:
    """An image at input size with its annotation.

    Attributes:
        pixels: (H, W, 3) uint8.
        mask: (H, W) bool, or None for an anomalous image without one.
        label: 1 if anomalous.
    """

    pixels: Array
    mask: Array | None
    label: int


def load_labelled(sample: Sample, size: tuple[int, int]) -> LabelledImage:
    """A sample with image and mask resized to (height, width)."""
    mask = None if sample.label == 1 and sample.mask is None else load_mask(sample, size).astype(bool)
    return LabelledImage(to_input(read_image(sample.image), size), mask, sample.label)


def augmented_view(
    sample: Sample, peers: Sequence[Sample], number: int, *, size: tuple[int, int], seed: int
) -> LabelledImage:
    """View `number` of a sample: a collage or a crop, with equal probability; deterministic in its arguments.

    Args:
        sample: The base image; needs a mask if it is anomalous.
        peers: Samples of its class, with masks if anomalous; may include `sample`.
        number: Index of the view.
        size: Height and width of the view.
        seed: Changes every view.
    """
    rng = np.random.default_rng(_entropy(sample.key, number, seed))
    cells = int(rng.choice(_SIDES))

    def load(source: Sample) -> LabelledImage:
        return load_labelled(source, size)

    if rng.random() < 0.5:
        return collage(sample, peers, cells, rng, load)
    return crop(load(sample), cells, rng)


def collage(
    base: Sample, peers: Sequence[Sample], cells: int, rng: np.random.Generator, load: Callable[[Sample], LabelledImage]
) -> LabelledImage:
    """`cells` x `cells` images of one class in random order, the base among them; all normal if the base is."""
    allowed = [peer for peer in peers if base.label == 1 or peer.label == 0] or [base]
    chosen = [base, *(allowed[int(i)] for i in rng.integers(len(allowed), size=cells * cells - 1))]
    tiles = [load(chosen[int(i)]) for i in rng.permutation(len(chosen))]
    height, width = tiles[0].pixels.shape[:2]
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    mask = np.zeros((height, width), dtype=bool)
    for tile, (rows, columns) in zip(tiles, _cells(height, width, cells), strict=True):
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        pixels[rows, columns] = _resize(tile.pixels, shape)
        mask[rows, columns] = _resize_mask(_mask_of(tile), shape)
    # A small defect can vanish in its tile, so the label comes from the resized mask.
    return LabelledImage(pixels, mask, int(mask.any()))


def crop(image: LabelledImage, cells: int, rng: np.random.Generator) -> LabelledImage:
    """One cell of the image at full size; a cell with defect pixels if the image has any."""
    mask = _mask_of(image)
    windows = _cells(mask.shape[0], mask.shape[1], cells)
    candidates = [window for window in windows if mask[window].any()] or windows
    window = candidates[int(rng.integers(len(candidates)))]
    enlarged = _resize_mask(mask[window], mask.shape)
    return LabelledImage(_resize(image.pixels[window], mask.shape), enlarged, int(enlarged.any()))


def _mask_of(image: LabelledImage) -> Array:
    if image.mask is None:
        raise ValueError("an anomalous image without a mask cannot become part of a view")
    return image.mask


def _cells(height: int, width: int, cells: int) -> list[tuple[slice, slice]]:
    rows = [round(height * step / cells) for step in range(cells + 1)]
    columns = [round(width * step / cells) for step in range(cells + 1)]
    return [
        (slice(top, bottom), slice(left, right)) for top, bottom in pairwise(rows) for left, right in pairwise(columns)
    ]


def _resize(pixels: Array, shape: tuple[int, int]) -> Array:
    return to_input(Image.fromarray(np.ascontiguousarray(pixels)), shape)


def _resize_mask(mask: Array, shape: tuple[int, ...]) -> Array:
    """The mask resized like its pixels; a pixel is set where more than half of it is covered."""
    values = Image.fromarray(np.ascontiguousarray(mask).astype(np.uint8) * 255)
    return np.asarray(values.resize((shape[1], shape[0]), Image.Resampling.BICUBIC)) > 127


def _entropy(key: str, number: int, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}/{key}".encode(), digest_size=8).digest(), "big")
