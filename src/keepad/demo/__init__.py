"""Demo images that need no download: real surfaces, and defects that this package paints onto them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from keepad.demo import defects, products
from keepad.demo.defects import Painted
from keepad.demo.products import SIZE, Surface
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
        product: "brick", "gravel", "cup" or "metal".
        defect: "good", or what was painted.
    """

    name: str
    image: Image.Image
    mask: np.ndarray
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
            surface = render(rng)
            noise = rng.standard_normal(surface.pixels.shape, np.float32) * np.float32(0.006)
            pixels, mask = surface.pixels, np.zeros((SIZE, SIZE), bool)
            if paint is not None:
                painted = paint(surface, rng)
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


def _brick_stain(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.stain(surface.pixels, rng, _somewhere(rng), 52, tint=(0.46, 0.45, 0.46))


def _brick_crack(surface: Surface, rng: np.random.Generator) -> Painted:
    start, end = _ends(rng, 190, (0.2, 0.8))
    return defects.crack(surface.pixels, rng, start, end, width=1.5)


def _brick_chip(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.chip(surface.pixels, rng, _somewhere(rng), 25, inside=(0.60, 0.38, 0.29))


def _brick_displaced(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.displaced(surface.pixels, rng, _somewhere(rng), 54)


def _gravel_stain(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.stain(surface.pixels, rng, _somewhere(rng), 60, tint=(0.34, 0.30, 0.26))


def _gravel_wire(surface: Surface, rng: np.random.Generator) -> Painted:
    (x0, y0), (x1, y1) = _ends(rng, 200, (-0.7, 0.7))
    bends = ((0, 0), (0.3, 22), (0.65, -24), (1, 8))
    knots = [(x0 + t * (x1 - x0), y0 + t * (y1 - y0) + bend) for t, bend in bends]
    return defects.thread(surface.pixels, rng, knots, width=9, colour=(0.78, 0.60, 0.12), twist=0)


def _gravel_washer(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.washer(surface.pixels, rng, _somewhere(rng), 29)


def _cup_chip(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.chip(surface.pixels, rng, surface.landmarks["rim"], 15, inside=(0.56, 0.44, 0.34))


def _cup_crack(surface: Surface, rng: np.random.Generator) -> Painted:
    x, y = surface.landmarks["saucer_left"]
    return defects.crack(surface.pixels, rng, (x - 28, y - 52), (x + 24, y + 74), width=1.2)


def _cup_stain(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.stain(surface.pixels, rng, surface.landmarks["saucer_right"], 27, tint=(0.42, 0.6, 0.7))


def _cup_thread(surface: Surface, rng: np.random.Generator) -> Painted:
    x, y = surface.landmarks["saucer_left"]
    knots = [(x - 34, y + 52), (x - 12, y + 2), (x + 20, y + 20), (x + 30, y - 46)]
    return defects.thread(surface.pixels, rng, knots, width=4, colour=(0.82, 0.80, 0.74), twist=0.22)


def _between_holes(rng: np.random.Generator) -> tuple[float, float]:
    """A place on the diagonal of the plate that the holes are not on."""
    along, across = rng.uniform(-110, 110), rng.uniform(-40, 40)
    return SIZE / 2 + along + across, SIZE / 2 - along + across


def _metal_scratch(surface: Surface, rng: np.random.Generator) -> Painted:
    start, end = _ends(rng, 170, (0.5, 1.2))
    return defects.scratch(surface.pixels, rng, start, end, width=2.4)


def _metal_dent(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.dent(surface.pixels, rng, _between_holes(rng), 34)


def _metal_rust(surface: Surface, rng: np.random.Generator) -> Painted:
    return defects.rust(surface.pixels, rng, _between_holes(rng), 46)


_Render = Callable[[np.random.Generator], Surface]
_Paint = Callable[[Surface, np.random.Generator], Painted]
_PRODUCTS: dict[str, tuple[_Render, dict[str, _Paint]]] = {
    "brick": (
        products.brick,
        {"stain": _brick_stain, "crack": _brick_crack, "chip": _brick_chip, "displaced": _brick_displaced},
    ),
    "gravel": (products.gravel, {"stain": _gravel_stain, "wire": _gravel_wire, "washer": _gravel_washer}),
    "cup": (products.cup, {"chip": _cup_chip, "crack": _cup_crack, "stain": _cup_stain, "thread": _cup_thread}),
    "metal": (products.metal, {"scratch": _metal_scratch, "dent": _metal_dent, "rust": _metal_rust}),
}
