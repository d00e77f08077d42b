"""Demo images without a download: photographed or rendered surfaces with painted defects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.demo import defects, products
from keepad.demo.defects import Painted, Point
from keepad.demo.products import SIZE
from keepad.errors import KeepADError

__all__ = ["DemoImage", "demo_images", "write_demo_images"]

_CLEAN_PER_PRODUCT = 3
_VISIBLE = 0.05  # pixels with less cover stay unchanged and outside of the mask


@dataclass(frozen=True, eq=False)
class DemoImage:
    """A demo image and its ground truth.

    Attributes:
        name: Unique name, such as "metal-scratch-000".
        image: RGB, 518 x 518.
        mask: (518, 518) bool, True where the defect changed the image.
        product: "gravel", "fabric", "ceramic" or "metal".
        defect: "good", or the kind of the painted defect.
    """

    name: str
    image: Image.Image
    mask: Array
    product: str
    defect: str


def demo_images(seed: int = 0) -> list[DemoImage]:
    """All demo images, deterministic in the seed: three clean views and one per defect of each product."""
    images = []
    for number, (product, (render, painters)) in enumerate(_PRODUCTS.items()):
        views: list[tuple[str, int, _Paint | None]] = [("good", index, None) for index in range(_CLEAN_PER_PRODUCT)]
        views += [(defect, 0, paint) for defect, paint in painters.items()]
        for view, (defect, index, paint) in enumerate(views):
            rng = np.random.default_rng([seed, number, view])
            clean = render(rng)
            noise = rng.standard_normal(clean.shape, np.float32) * np.float32(0.006)
            pixels, mask = clean, np.zeros((SIZE, SIZE), bool)
            if paint is not None:
                painted = paint(clean, rng)
                mask = painted.cover > _VISIBLE
                pixels = np.where(mask[..., None], painted.pixels.astype(np.float32), pixels)
            # The same sensor noise with and without a defect: pixels outside of the mask equal the clean view.
            image = Image.fromarray(np.rint(np.clip(pixels + noise, 0, 1) * 255).astype(np.uint8))
            images.append(DemoImage(f"{product}-{defect}-{index:03d}", image, mask, product, defect))
    return images


def write_demo_images(folder: str | Path, seed: int = 0) -> list[Path]:
    """Paths of the demo images, written below `folder` in the layout of MVTec AD, with their masks.

    Raises:
        KeepADError: The folder cannot be written.
    """
    paths = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for demo in demo_images(seed):
            product, number = Path(folder, demo.product), demo.name.rpartition("-")[2]
            path = product / "test" / demo.defect / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            demo.image.save(path, compress_level=3)
            paths.append(path)
            if demo.defect != "good":
                mask = product / "ground_truth" / demo.defect / f"{number}_mask.png"
                mask.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(demo.mask).convert("L").save(mask)
    except OSError as error:
        reason = error.strerror or str(error)
        raise KeepADError(f"Demo images cannot be written to '{folder}' ({reason}); name another folder.") from error
    return paths


def _centre(rng: np.random.Generator) -> Point:
    x, y = rng.uniform(0.25 * SIZE, 0.75 * SIZE, 2)
    return float(x), float(y)


def _ends(rng: np.random.Generator, length: float, angle: tuple[float, float]) -> tuple[Point, Point]:
    """End points of a random line of `length` pixels, its angle in radians within `angle`."""
    (x, y), turn = _centre(rng), rng.uniform(*angle)
    dx, dy = 0.5 * length * np.cos(turn), 0.5 * length * np.sin(turn)
    return (float(x - dx), float(y - dy)), (float(x + dx), float(y + dy))


def _squiggle(rng: np.random.Generator, length: float, bends: tuple[float, ...], jitter: float) -> Array:
    """(N, 2) knots of a wavy line about `length` pixels long, each moved down by its bend, then by up to `jitter`."""
    start, end = np.array(_ends(rng, length, (-0.5, 0.5)))
    knots = start + np.linspace(0, 1, len(bends))[:, None] * (end - start)
    knots[:, 1] += bends
    return np.asarray(knots + rng.uniform(-jitter, jitter, knots.shape))


_Render = Callable[[np.random.Generator], Array]
_Paint = Callable[[Array, np.random.Generator], Painted]
_PRODUCTS: dict[str, tuple[_Render, dict[str, _Paint]]] = {
    "gravel": (
        products.gravel,
        {
            "stain": lambda pixels, rng: defects.stain(pixels, rng, _centre(rng), 42, tint=(0.30, 0.25, 0.20)),
            "wire": lambda pixels, rng: defects.thread(
                pixels, _squiggle(rng, 100, (0, 22, -24, 8), 6), width=9, colour=(0.78, 0.60, 0.12), twist=0
            ),
            "washer": lambda pixels, rng: defects.washer(pixels, rng, _centre(rng), 40, metal=(1.35, 0.98, 0.48)),
        },
    ),
    "fabric": (
        products.fabric,
        {
            "hole": lambda pixels, rng: defects.tear(pixels, rng, _centre(rng), 30),
            "oil": lambda pixels, rng: defects.stain(pixels, rng, _centre(rng), 38, tint=(0.50, 0.42, 0.30)),
            "thread": lambda pixels, rng: defects.thread(
                pixels, _squiggle(rng, 94, (0, 26, -22, 18, -4), 6), width=9, colour=(0.72, 0.14, 0.12), twist=0.22
            ),
        },
    ),
    "ceramic": (
        products.ceramic,
        {
            "crack": lambda pixels, rng: defects.crack(pixels, rng, *_ends(rng, 112, (0.3, 1.2)), width=2.0),
            "chip": lambda pixels, rng: defects.chip(pixels, rng, _centre(rng), 27, inside=(0.62, 0.46, 0.37)),
            "ink": lambda pixels, rng: defects.ink(
                pixels, rng, _squiggle(rng, 95, (0, -26, 22, -16), 5), width=8, tint=(0.12, 0.16, 0.42)
            ),
        },
    ),
    "metal": (
        products.metal,
        {
            "scratch": lambda pixels, rng: defects.scratch(pixels, rng, *_ends(rng, 125, (0.5, 1.1)), width=8),
            "dent": lambda pixels, rng: defects.dent(pixels, rng, _centre(rng), 37),
            "rust": lambda pixels, rng: defects.rust(pixels, rng, _centre(rng), 36),
        },
    ),
}
