"""The surfaces of the demo images without defects: a photograph, and a cloth, a tile and a metal plate, rendered.

Each function returns a random view, (SIZE, SIZE, 3) float32 in [0, 1].
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, gaussian_filter1d, uniform_filter1d

from keepad.arrays import Array

SIZE = 518  # 37 patches of 14 pixels


def gravel(rng: np.random.Generator) -> Array:
    """A bed of crushed stone, seen from above."""
    tinted = _photo("gravel.jpg") * np.array([1.02, 1.0, 0.965], np.float32)
    # Mirrored copies enlarge the photograph without a seam.
    wide = np.concatenate([tinted, tinted[:, ::-1]], axis=1)
    return _view(np.concatenate([wide, wide[::-1]]), rng, share=(0.8, 0.95))


def fabric(rng: np.random.Generator) -> Array:
    """Grey twill: each yarn passes over two and under two, shifted by one against its neighbour."""
    fine, pitch = 2 * SIZE, 15.0  # rendered at twice the size against aliasing
    y, x = np.mgrid[:fine, :fine].astype(np.float32)
    # The cloth is slightly warped, and yarns vary in thickness.
    x, y = x + 5 * _smooth_noise(rng, fine, 160), y + 5 * _smooth_noise(rng, fine, 160)
    yarns = int(fine / pitch) + 8
    positions = [np.cumsum(pitch * (1 + 0.07 * rng.standard_normal(yarns))) - 4 * pitch for _ in range(2)]
    u, v = (
        np.interp(axis, at, np.arange(yarns)).astype(np.float32) for axis, at in zip((x, y), positions, strict=True)
    )
    i, j = np.floor(u), np.floor(v)
    warp = _yarn(u - i) + 0.55 * np.cos(np.pi / 2 * (i + 0.5 - v))
    weft = _yarn(v - j) - 0.55 * np.cos(np.pi / 2 * (u - j - 0.5))
    over = 1 / (1 + np.exp(-9 * (warp - weft)))
    height = gaussian_filter(np.maximum(warp, weft), 1.2)
    down, right = np.gradient(height)
    light = 0.78 + 0.20 * height + 1.1 * (down + right)
    fibres = [gaussian_filter(rng.standard_normal((fine, fine), np.float32), s) for s in ((7, 0.9), (0.9, 7))]
    shades = [1 + 0.045 * rng.standard_normal(yarns).astype(np.float32) for _ in range(2)]
    tones = [
        shade[index.astype(int)] * (1 + 0.07 * fibre / fibre.std())
        for shade, index, fibre in zip(shades, (i, j), fibres, strict=True)
    ]
    warp_colour, weft_colour = np.array([0.40, 0.43, 0.46], np.float32), np.array([0.51, 0.53, 0.545], np.float32)
    cloth = (over * tones[0])[..., None] * warp_colour + ((1 - over) * tones[1])[..., None] * weft_colour
    cloth = cloth * np.clip(light, 0.2, 1.6)[..., None]
    return _lit(cloth.reshape(SIZE, 2, SIZE, 2, 3).mean(axis=(1, 3)), rng, strength=0.16)


def ceramic(rng: np.random.Generator) -> Array:
    """A tile with a matt, finely speckled glaze that fills the frame."""
    # A slightly wavy glaze with grains of pigment at different depths.
    down, right = np.gradient(_smooth_noise(rng, SIZE, 3) + 3 * _smooth_noise(rng, SIZE, 11))
    uneven = 0.006 * _smooth_noise(rng, SIZE, 1) + 0.008 * _smooth_noise(rng, SIZE, 40)
    tile = (1 + 0.011 * (down + right) + uneven)[..., None] * np.array([0.835, 0.815, 0.765], np.float32)
    for grain, share, depth in ((0.6, 0.004, 0.35), (0.9, 0.0012, 0.9)):
        grains = gaussian_filter((rng.random((SIZE, SIZE)) < share) * rng.uniform(0.4, 1, (SIZE, SIZE)), grain)
        tile = tile * (1 - np.clip(depth * grains, 0, 0.3)[..., None] * np.array([0.8, 0.95, 1.1], np.float32))
    return _lit(tile, rng, strength=0.13)


def metal(rng: np.random.Generator) -> Array:
    """A plain plate of brushed steel."""
    lines = np.zeros((SIZE, SIZE), np.float32)
    # Grooves of several lengths and widths; each layer is noise smeared along the stroke.
    for along, across, strength in ((220, 0.45, 0.5), (70, 0.7, 0.3), (400, 2.2, 0.4), (15, 0.4, 0.22)):
        layer = gaussian_filter1d(rng.standard_normal((SIZE, SIZE), np.float32), across, axis=0)
        layer = uniform_filter1d(uniform_filter1d(layer, along, axis=1, mode="wrap"), along, axis=1, mode="wrap")
        lines += strength * layer / layer.std()
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) / SIZE
    # Brushed metal spreads the reflection of a lamp across the grooves.
    band = np.exp(-(((x - rng.uniform(0.3, 0.7)) / 0.38) ** 2))
    base = 0.40 + 0.20 * band - 0.06 * y
    grey = base * (1 + 0.062 * lines)
    pixels = grey[..., None] * np.array([0.985, 1.0, 1.03], np.float32)
    return np.asarray(np.clip(pixels, 0, 1), np.float32)


@cache
def _photo(name: str) -> Array:
    """(H, W, 3) float32 in [0, 1]."""
    with files("keepad.demo").joinpath(f"assets/{name}").open("rb") as file:
        return np.asarray(Image.open(file).convert("RGB"), np.float32) / 255


def _view(photo: Array, rng: np.random.Generator, *, share: tuple[float, float]) -> Array:
    """A random crop with `share` of each side, randomly mirrored and lit."""
    height, width = photo.shape[:2]
    part = rng.uniform(*share)
    crop_h, crop_w = part * height, part * width
    top, left = rng.uniform(0, height - crop_h), rng.uniform(0, width - crop_w)
    channels = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(photo[..., c])).resize(
                (SIZE, SIZE), Image.Resampling.BICUBIC, box=(left, top, left + crop_w, top + crop_h)
            )
        )
        for c in range(3)
    ]
    pixels = np.stack(channels, axis=-1)
    return _lit(pixels[:, ::-1] if rng.integers(2) else pixels, rng, strength=0.05)


def _lit(pixels: Array, rng: np.random.Generator, *, strength: float) -> Array:
    """The pixels in random light that falls off by up to `strength` across the image."""
    slope = rng.uniform(-strength, strength, 2)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) / SIZE - 0.5
    light = rng.uniform(0.95, 1.06) * (1 + slope[0] * x + slope[1] * y - strength * (x * x + y * y))
    return np.asarray(np.clip(pixels * light[..., None], 0, 1), np.float32)


def _yarn(across: Array) -> Array:
    """Height of a round yarn, 0 to 1, at a position across it, 0 to 1."""
    return np.asarray(np.sqrt(np.clip(1 - (2 * across - 1) ** 2, 0, 1)))


def _smooth_noise(rng: np.random.Generator, side: int, grain: float) -> Array:
    """(side, side) noise of standard deviation 1 with a correlation length of about `grain` pixels."""
    # Long correlation lengths are drawn on a coarser grid, for speed.
    step = max(1, int(grain / 4))
    coarse = -(-side // step) + 1
    field = gaussian_filter(rng.standard_normal((coarse, coarse), np.float32), grain / step, mode="wrap", truncate=3)
    if step > 1:
        field = np.asarray(Image.fromarray(field).resize((coarse * step, coarse * step), Image.Resampling.BICUBIC))
    field = field[:side, :side]
    return np.asarray((field - field.mean()) / field.std())
