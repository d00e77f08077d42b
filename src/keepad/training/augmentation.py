"""Collage-and-crop: other views of the labelled images, made of real pixels only.

A view shows defects at other sizes and among other surroundings than the image it comes from. Nothing is painted: a
collage puts images of one class side by side, a crop enlarges one cell of an image; mask and label follow the pixels.
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
class Picture:
    """An image at input size with what is known about it.

    Attributes:
        pixels: (H, W, 3) uint8.
        mask: (H, W) bool, or None where an anomalous image comes without one.
        label: 1 if anomalous.
    """

    pixels: Array
    mask: Array | None
    label: int


def read_picture(sample: Sample, size: tuple[int, int]) -> Picture:
    """A sample as the network sees it; image and mask are squashed to `size` alike."""
    mask = None if sample.label == 1 and sample.mask is None else load_mask(sample, size).astype(bool)
    return Picture(to_input(read_image(sample.image), size), mask, sample.label)


def view_of(sample: Sample, mates: Sequence[Sample], number: int, *, size: tuple[int, int], seed: int) -> Picture:
    """View `number` of a sample: a collage or a crop, each half of the time; the same arguments give the same view.

    Args:
        sample: The image the view is made from; it must have a mask if it is anomalous.
        mates: Samples of its class, itself among them or not, all of them with masks if anomalous.
        number: Which of its views.
        size: Height and width of the view.
        seed: Changes every view.
    """
    rng = np.random.default_rng(_entropy(sample.key, number, seed))
    cells = int(rng.choice(_SIDES))

    def read(one: Sample) -> Picture:
        return read_picture(one, size)

    if rng.random() < 0.5:
        return collage(sample, mates, cells, rng, read)
    return crop(read(sample), cells, rng)


def collage(
    base: Sample, mates: Sequence[Sample], cells: int, rng: np.random.Generator, read: Callable[[Sample], Picture]
) -> Picture:
    """`cells` x `cells` images of one class, the base among them, in any order; all normal if the base is."""
    allowed = [one for one in mates if base.label == 1 or one.label == 0] or [base]
    chosen = [base, *(allowed[int(place)] for place in rng.integers(len(allowed), size=cells * cells - 1))]
    tiles = [read(chosen[int(place)]) for place in rng.permutation(len(chosen))]
    height, width = tiles[0].pixels.shape[:2]
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    mask = np.zeros((height, width), dtype=bool)
    for tile, (rows, columns) in zip(tiles, _cells(height, width, cells), strict=True):
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        pixels[rows, columns] = _resized(tile.pixels, shape)
        mask[rows, columns] = _resized_mask(_known(tile), shape)
    # A defect can be too small to be left in a tile; the label says what the pixels show.
    return Picture(pixels, mask, int(mask.any()))


def crop(picture: Picture, cells: int, rng: np.random.Generator) -> Picture:
    """One cell of the image at full size; a cell that holds defect if the image has any."""
    mask = _known(picture)
    places = _cells(mask.shape[0], mask.shape[1], cells)
    with_defect = [place for place in places if mask[place].any()]
    choice = with_defect or places
    place = choice[int(rng.integers(len(choice)))]
    enlarged = _resized_mask(mask[place], mask.shape)
    return Picture(_resized(picture.pixels[place], mask.shape), enlarged, int(enlarged.any()))


def _known(picture: Picture) -> Array:
    if picture.mask is None:
        raise ValueError("an anomalous image without a mask cannot become part of a view")
    return picture.mask


def _cells(height: int, width: int, cells: int) -> list[tuple[slice, slice]]:
    rows = [round(height * step / cells) for step in range(cells + 1)]
    columns = [round(width * step / cells) for step in range(cells + 1)]
    return [
        (slice(top, bottom), slice(left, right)) for top, bottom in pairwise(rows) for left, right in pairwise(columns)
    ]


def _resized(pixels: Array, shape: tuple[int, int]) -> Array:
    return to_input(Image.fromarray(np.ascontiguousarray(pixels)), shape)


def _resized_mask(mask: Array, shape: tuple[int, int]) -> Array:
    """A mask squashed or enlarged as its pixels are; a pixel counts where more than half of it is covered."""
    values = Image.fromarray(np.ascontiguousarray(mask).astype(np.uint8) * 255)
    return np.asarray(values.resize((shape[1], shape[0]), Image.Resampling.BICUBIC)) > 127


def _entropy(key: str, number: int, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}/{key}".encode(), digest_size=8).digest(), "big")
