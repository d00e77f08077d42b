"""Sheets: large images of one plain colour with a textured part and small defects, composed from smaller images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from keepad.arrays import Array
from keepad.data import Sample
from keepad.data.masks import defect_pixels
from keepad.demo import defects as painting
from keepad.demo import products
from keepad.images import read_image

DEFECT_SIDES = (6, 40)  # pixels of the longer side of a pasted defect
PLAIN = 0.8  # share of a sheet
_ON_PLAIN = 3  # every third defect lies beside the part
_MARGIN = 4  # pixels around a defect that are pasted with it, fading out
_NOISE = 1.5  # grey levels of sensor noise on the plain area
_SHADE = 3.0  # grey levels by which its light falls off


@dataclass(frozen=True)
class Defect:
    """A defect and its surroundings: (h, w, 3) uint8 pixels and (h, w) bool mask."""

    pixels: Array
    mask: Array


@dataclass(frozen=True)
class Surface:
    """What sheets are composed of: good images, (H, W, 3) uint8 each, and defects at the same scale."""

    name: str
    good: Sequence[Array]
    defects: Sequence[Defect]


@dataclass(frozen=True)
class Sheet:
    """(H, W, 3) uint8 pixels, (H, W) bool mask of the defects, and (H, W) bool of the textured part."""

    pixels: Array
    mask: Array
    part: Array


def compose(surface: Surface, rng: np.random.Generator, size: tuple[int, int], plain: float, defects: int) -> Sheet:
    """A sheet of one surface.

    Args:
        surface: Its images and defects.
        rng: Decides everything else.
        size: Height and width.
        plain: Share of the sheet that is plain.
        defects: Number of defects; none for a normal sheet.
    """
    height, width = size
    sheet, part = np.empty((height, width, 3), np.uint8), np.zeros(size, dtype=bool)
    colour = np.mean([image.mean(axis=(0, 1)) for image in surface.good], axis=0)
    for top in range(0, height, 512):  # in bands: sheets may be large
        rows = min(512, height - top)
        fall = _SHADE * (np.arange(top, top + rows) / height - 0.5)[:, None, None]
        noise = _NOISE * rng.standard_normal((rows, width, 1), np.float32)
        sheet[top : top + rows] = np.clip(np.rint(colour + fall + noise), 0, 255)
    # The part is one block of whole images, row by row, and a strip of a last one.
    side_y, side_x = surface.good[0].shape[:2]
    area = (1 - plain) * height * width
    deep = max(1, min(height // side_y, round((area / side_y / side_x) ** 0.5)))
    wide = round(area / (deep * side_y))
    top, left = int(rng.integers(0, height - deep * side_y + 1)), int(rng.integers(0, max(1, width - wide)))
    for row in range(deep):
        for column in range(-(-wide // side_x)):
            image = surface.good[int(rng.integers(len(surface.good)))]
            image = image[:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]
            x, y = left + column * side_x, top + row * side_y
            reach = min(side_x, left + wide - x, width - x)
            sheet[y : y + side_y, x : x + reach] = image[:, :reach]
    part[top : top + deep * side_y, left : left + wide] = True
    mask = np.zeros(size, dtype=bool)
    for number in range(defects):
        _place(
            sheet, mask, part, surface.defects[int(rng.integers(len(surface.defects)))], rng, number % _ON_PLAIN == 0
        )
    return Sheet(sheet, mask, part)


def _place(sheet: Array, mask: Array, part: Array, defect: Defect, rng: np.random.Generator, beside: bool) -> None:
    """Paste a defect on the part, or beside it, where no other lies; where there is no room, nothing."""
    high, wide = defect.mask.shape
    for _ in range(200):
        y, x = int(rng.integers(0, len(sheet) - high)), int(rng.integers(0, sheet.shape[1] - wide))
        window = np.s_[y : y + high, x : x + wide]
        own = part[window]
        if mask[max(0, y - 60) : y + high + 60, max(0, x - 60) : x + wide + 60].any() or own.any() != own.all():
            continue
        if bool(own.all()) == beside:
            continue
        ground = sheet[window].astype(np.float32)
        cover = ndimage.gaussian_filter(ndimage.binary_dilation(defect.mask, iterations=2).astype(np.float32), 1.0)
        pixels: Array = defect.pixels.astype(np.float32)
        if beside:  # what the defect changes, on the plain colour
            pixels = ground + pixels - np.median(pixels[~defect.mask], axis=0)
        sheet[window] = np.clip(np.rint(ground + cover[..., None] * (pixels - ground)), 0, 255).astype(np.uint8)
        mask[window] |= defect.mask
        return


def cut_defects(pixels: Array, mask: Array) -> list[Defect]:
    """The connected defects of an image whose longer side lies within `DEFECT_SIDES`, with their surroundings."""
    labels, _ = ndimage.label(mask, structure=np.ones((3, 3)))
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        if not DEFECT_SIDES[0] <= max(high, wide) <= DEFECT_SIDES[1]:
            continue
        top, left = rows.start - _MARGIN, columns.start - _MARGIN
        bottom, right = rows.stop + _MARGIN, columns.stop + _MARGIN
        if top < 0 or left < 0 or bottom > len(mask) or right > mask.shape[1]:
            continue
        window = np.s_[top:bottom, left:right]
        found.append(Defect(pixels[window].copy(), labels[window] == number))
    return found


def real_surface(samples: Sequence[Sample], most: int = 40) -> Surface:
    """The surface of one class of a data set, from its test images."""
    good = [np.asarray(read_image(sample.image)) for sample in samples if sample.label == 0][:most]
    defects: list[Defect] = []
    for sample in samples:
        if sample.mask is not None and len(defects) < most:
            defects += cut_defects(np.asarray(read_image(sample.image)), defect_pixels(sample.mask))
    return Surface(samples[0].cls, good, defects)


def demo_surfaces() -> list[Surface]:
    """The surfaces of the demo images, with defects painted at 6 to 40 pixels."""
    surfaces = []
    renders = (products.gravel, products.fabric, products.ceramic, products.metal)
    for number, render in enumerate(renders):
        good = [render(np.random.default_rng([7, number, view])) for view in range(3)]
        defects: list[Defect] = []
        for seed in range(8):
            rng = np.random.default_rng([8, number, seed])
            radius, centre = float(rng.uniform(4, 15)), (259.0, 259.0)
            clean = good[seed % 3]
            painted = (
                painting.stain(clean, rng, centre, radius, tint=(0.3, 0.25, 0.2)),
                painting.chip(clean, rng, centre, radius, inside=(0.62, 0.46, 0.37)),
                painting.rust(clean, rng, centre, radius),
                painting.crack(clean, rng, (259 - radius, 259 - radius), (259 + radius, 259 + radius), width=1.5),
            )[seed % 4]
            defects += cut_defects(_bytes(painted.pixels), painted.cover > 0.05)
        surfaces.append(Surface(render.__name__, [_bytes(image) for image in good], defects))
    return surfaces


def _bytes(pixels: Array) -> Array:
    return np.asarray(np.rint(np.clip(pixels, 0, 1) * 255), np.uint8)


def write_sheets(surface: Surface, folder: Path, size: tuple[int, int], counts: tuple[int, int]) -> list[Path]:
    """Sheets with defects and normal ones, so many of each, as MVTec AD lays them out; those that are there stay."""
    written = []
    for kind, count, defects in (("pasted", counts[0], 12), ("good", counts[1], 0)):
        for number in range(count):
            path = folder / surface.name / "test" / kind / f"{number:03d}.png"
            truth = folder / surface.name / "ground_truth" / kind / f"{number:03d}_mask.png"
            written.append(path)
            if path.exists() and (not defects or truth.exists()):
                continue
            sheet = compose(surface, np.random.default_rng([3, number, defects]), size, PLAIN, defects)
            path.parent.mkdir(parents=True, exist_ok=True)
            if defects:
                truth.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(sheet.mask).convert("L").save(truth)
            Image.fromarray(sheet.pixels).save(path, compress_level=1)
    return written
