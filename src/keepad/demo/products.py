"""The four surfaces of the demo images, clean: three photographs and one rendered metal plate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter1d, uniform_filter1d

SIZE = 518  # 37 patches of 14 pixels


@dataclass(frozen=True, eq=False)
class Surface:
    """A clean view of a product.

    Attributes:
        pixels: (SIZE, SIZE, 3) float32 in [0, 1].
        landmarks: Named places of the product, (x, y) in pixels of this view.
    """

    pixels: np.ndarray
    landmarks: dict[str, tuple[float, float]]


# Places on the photograph of the cup, in pixels of the stored file.
_CUP_LANDMARKS = {"rim": (206.0, 192.0), "saucer_left": (82.0, 172.0), "saucer_right": (398.0, 206.0)}


def brick(rng: np.random.Generator) -> Surface:
    """Brick paving, seen under a slight angle."""
    grey = _photo("brick.jpg")[..., 0]
    # The photograph is grey; clay and mortar differ enough in brightness to get their colours back.
    levels = np.array([0.0, 0.26, 0.40, 0.52, 0.68, 1.0])
    colours = np.array(
        [[8, 5, 5], [84, 46, 37], [142, 80, 62], [150, 122, 104], [186, 176, 162], [244, 240, 232]], np.float32
    )
    coloured = np.stack([np.interp(grey, levels, colours[:, c] / 255) for c in range(3)], axis=-1)
    return _view(coloured.astype(np.float32), rng, share=(0.74, 0.9), mirror=True)


def gravel(rng: np.random.Generator) -> Surface:
    """Crushed stone, seen from above."""
    tinted = _photo("gravel.jpg") * np.array([1.02, 1.0, 0.965], np.float32)
    return _view(tinted, rng, share=(0.68, 0.82), mirror=True)


def cup(rng: np.random.Generator) -> Surface:
    """An espresso cup on its saucer."""
    return _view(_photo("cup.jpg"), rng, share=(0.94, 0.99), mirror=True, landmarks=_CUP_LANDMARKS)


def metal(rng: np.random.Generator) -> Surface:
    """A brushed steel plate with two drilled holes."""
    lines = np.zeros((SIZE, SIZE), np.float32)
    # Brushing leaves grooves of several lengths and widths; each layer is noise smeared along the stroke.
    for along, across, strength in ((220, 0.45, 0.5), (70, 0.7, 0.3), (400, 2.2, 0.4), (15, 0.4, 0.22)):
        layer = gaussian_filter1d(rng.standard_normal((SIZE, SIZE), np.float32), across, axis=0)
        layer = uniform_filter1d(uniform_filter1d(layer, along, axis=1, mode="wrap"), along, axis=1, mode="wrap")
        lines += strength * layer / layer.std()
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) / SIZE
    # Brushed metal spreads a lamp's reflection across the grooves into a soft vertical band.
    band = np.exp(-(((x - rng.uniform(0.3, 0.7)) / 0.38) ** 2))
    base = 0.40 + 0.20 * band - 0.06 * y
    grey = base * (1 + 0.062 * lines)
    pixels = grey[..., None] * np.array([0.985, 1.0, 1.03], np.float32)
    shift = rng.uniform(-12, 12, 2)
    landmarks = {}
    for number, (hole_x, hole_y) in enumerate(((112.0, 120.0), (406.0, 398.0))):
        centre = (hole_x + float(shift[0]), hole_y + float(shift[1]))
        _drill(pixels, centre, 31.0)
        landmarks[f"hole_{number}"] = centre
    return Surface(np.clip(pixels, 0, 1).astype(np.float32), landmarks)


def _drill(pixels: np.ndarray, centre: tuple[float, float], radius: float) -> None:
    """Puts a countersunk hole into `pixels`: dark inside, with a turned bevel that catches the light."""
    left, top = int(centre[0] - radius - 6), int(centre[1] - radius - 6)
    side = int(2 * radius + 13)
    window = pixels[top : top + side, left : left + side]
    y, x = np.mgrid[:side, :side].astype(np.float32)
    dx, dy = x + left - centre[0], y + top - centre[1]
    r = np.hypot(dx, dy)
    angle = np.arctan2(dy, dx)
    bevel = 0.47 + 0.25 * np.cos(2 * (angle - 0.7)) - 0.13 * np.cos(angle + 2.2) + 0.03 * np.sin(r * 2.4)
    inside = 0.055 + 0.07 * np.clip((dx + dy) / (1.4 * radius) + 0.1, 0, 1)
    for colour, edge in ((bevel, radius), (inside, 0.66 * radius)):
        cover = np.clip(edge - r + 0.5, 0, 1)[..., None]
        window[:] = window * (1 - cover) + colour[..., None] * np.array([0.98, 1.0, 1.03], np.float32) * cover
    rim = 0.5 * np.exp(-(((r - radius) / 1.1) ** 2))
    window *= 1 - rim[..., None]


@cache
def _photo(name: str) -> np.ndarray:
    """(H, W, 3) float32 in [0, 1]."""
    with files("keepad.demo").joinpath(f"assets/{name}").open("rb") as file:
        return np.asarray(Image.open(file).convert("RGB"), np.float32) / 255


def _view(
    photo: np.ndarray,
    rng: np.random.Generator,
    *,
    share: tuple[float, float],
    mirror: bool,
    landmarks: dict[str, tuple[float, float]] | None = None,
) -> Surface:
    """Another photograph of the same thing: a random crop of `share` of each side, mirrored or not, in other light."""
    height, width = photo.shape[:2]
    part = rng.uniform(*share)
    crop_h, crop_w = part * height, part * width
    top, left = rng.uniform(0, height - crop_h), rng.uniform(0, width - crop_w)
    flip = mirror and bool(rng.integers(2))
    channels = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(photo[..., c])).resize(
                (SIZE, SIZE), Image.Resampling.BICUBIC, box=(left, top, left + crop_w, top + crop_h)
            )
        )
        for c in range(3)
    ]
    pixels = np.stack(channels, axis=-1)
    pixels = pixels[:, ::-1] if flip else pixels
    slope = rng.uniform(-0.05, 0.05, 2)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) / SIZE - 0.5
    light = rng.uniform(0.95, 1.06) * (1 + slope[0] * x + slope[1] * y)
    places = {}
    for name, (place_x, place_y) in (landmarks or {}).items():
        column = (place_x - left) / crop_w * SIZE
        places[name] = (SIZE - 1 - column if flip else column, (place_y - top) / crop_h * SIZE)
    return Surface(np.clip(pixels * light[..., None], 0, 1).astype(np.float32), places)
