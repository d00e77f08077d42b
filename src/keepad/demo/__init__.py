"""Demo images that need no download: photographed or rendered surfaces, and defects painted onto them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.demo import defects, products
from keepad.demo.defects import Painted
from keepad.demo.products import SIZE
from keepad.errors import KeepADError

__all__ = ["DemoImage", "demo_images", "write_demo_images"]

_CLEAN_PER_PRODUCT = 3
# Cover below this changes a pixel by less than the eye sees; it is left as it was and out of the mask.
_VISIBLE = 0.05


@dataclass(frozen=True, eq=False)
class DemoImage:
    """One demo image.

    Attributes:
        name: Unique name, such as "metal-scratch-000".
        image: RGB, 518 x 518.
        mask: (518, 518) bool, True where the defect changed the image.
        product: "gravel", "fabric", "ceramic" or "metal".
        defect: "good", or what was painted.
    """

    name: str
    image: Image.Image
    mask: Array
    product: str
    defect: str


def demo_images(seed: int = 0) -> list[DemoImage]:
    """All demo images, the same ones for the same seed: of each product three clean views and one per defect."""
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
            # The same sensor noise over both, so that nothing outside of the mask differs from the clean view.
            image = Image.fromarray(np.rint(np.clip(pixels + noise, 0, 1) * 255).astype(np.uint8))
            images.append(DemoImage(f"{product}-{defect}-{index:03d}", image, mask, product, defect))
    return images


def write_demo_images(folder: str | Path, seed: int = 0) -> list[Path]:
    """Paths of the demo images, written below `folder` in the layout of MVTec AD.

    That is `<product>/test/<good or defect>/000.png`, and `<product>/ground_truth/<defect>/000_mask.png` beside them.

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


def _somewhere(rng: np.random.Generator) -> tuple[float, float]:
    x, y = rng.uniform(0.25 * SIZE, 0.75 * SIZE, 2)
    return float(x), float(y)


def _ends(rng: np.random.Generator, length: float, angle: tuple[float, float]) -> list[tuple[float, float]]:
    """The two ends of a line of `length` pixels somewhere in the image, its angle in radians within `angle`."""
    (x, y), turn = _somewhere(rng), rng.uniform(*angle)
    dx, dy = 0.5 * length * np.cos(turn), 0.5 * length * np.sin(turn)
    return [(float(x - dx), float(y - dy)), (float(x + dx), float(y + dy))]


def _squiggle(rng: np.random.Generator, length: float, bends: tuple[float, ...]) -> list[tuple[float, float]]:
    """Knots of a wavy line about `length` pixels long, each moved down by its `bend`."""
    (x0, y0), (x1, y1) = _ends(rng, length, (-0.5, 0.5))
    places = zip(np.linspace(0, 1, len(bends)), bends, strict=True)
    return [(float(x0 + t * (x1 - x0)), float(y0 + t * (y1 - y0) + bend)) for t, bend in places]


def _gravel_stain(pixels: Array, rng: np.random.Generator) -> Painted:
    return defects.stain(pixels, rng, _somewhere(rng), 42, tint=(0.30, 0.25, 0.20))


def _gravel_wire(pixels: Array, rng: np.random.Generator) -> Painted:
    knots = _squiggle(rng, 100, (0, 22, -24, 8))
    return defects.thread(pixels, rng, knots, width=9, colour=(0.78, 0.60, 0.12), twist=0)


def _gravel_washer(pixels: Array, rng: np.random.Generator) -> Painted:
    return defects.washer(pixels, rng, _somewhere(rng), 40, metal=(1.35, 0.98, 0.48))


def _fabric_hole(pixels: Array, rng: np.random.Generator) -> Painted:
    return defects.tear(pixels, rng, _somewhere(rng), 30)


def _fabric_oil(pixels: Array, rng: np.random.Generator) -> Painted:
    return defects.stain(pixels, rng, _somewhere(rng), 38, tint=(0.50, 0.42, 0.30))


def _fabric_thread(pixels: Array, rng: np.random.Generator) -> Painted:
    knots = _squiggle(rng, 94, (0, 26, -22, 18, -4))
    return defects.thread(pixels, rng, knots, width=9, colour=(0.72, 0.14, 0.12), twist=0.22)


def _ceramic_crack(pixels: Array, rng: np.random.Generator) -> Painted:
    start, end = _ends(rng, 112, (0.3, 1.2))
    return defects.crack(pixels, rng, start, end, width=2.0)


def _ceramic_chip(pixels: Array, rng: np.random.Generator) -> Painted:
    return defects.chip(pixels, rng, _somewhere(rng), 27, inside=(0.62, 0.46, 0.37))


def _ceramic_ink(pixels: Array, rng: np.random.Generator) -> Painted:
    knots = _squiggle(rng, 95, (0, -26, 22, -16))
    return defects.ink(pixels, rng, knots, width=8, tint=(0.12, 0.16, 0.42))


def _metal_scratch(pixels: Array, rng: np.random.Generator) -> Painted:
    start, end = _ends(rng, 125, (0.5, 1.1))
    return defects.scratch(pixels, rng, start, end, width=8)


def _metal_dent(pixels: Array, rng: np.random.Generator) -> Painted:
    return defects.dent(pixels, rng, _somewhere(rng), 37)


def _metal_rust(pixels: Array, rng: np.random.Generator) -> Painted:
    return defects.rust(pixels, rng, _somewhere(rng), 36)


_Render = Callable[[np.random.Generator], Array]
_Paint = Callable[[Array, np.random.Generator], Painted]
_PRODUCTS: dict[str, tuple[_Render, dict[str, _Paint]]] = {
    "gravel": (products.gravel, {"stain": _gravel_stain, "wire": _gravel_wire, "washer": _gravel_washer}),
    "fabric": (products.fabric, {"hole": _fabric_hole, "oil": _fabric_oil, "thread": _fabric_thread}),
    "ceramic": (products.ceramic, {"crack": _ceramic_crack, "chip": _ceramic_chip, "ink": _ceramic_ink}),
    "metal": (products.metal, {"scratch": _metal_scratch, "dent": _metal_dent, "rust": _metal_rust}),
}
