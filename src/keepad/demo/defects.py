"""Painters of defects: each returns the painted pixels and the cover of each pixel.

Light comes from the upper left, and part of the texture below stays visible, so that defects look photographed.
Points are (x, y) in pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.ndimage import gaussian_filter, gaussian_filter1d
from scipy.spatial import cKDTree

from keepad.arrays import Array

Point = tuple[float, float]
Colour = tuple[float, float, float]


class Painted(NamedTuple):
    """Pixels (H, W, 3) after painting, and cover (H, W) in [0, 1], 0 for unchanged pixels."""

    pixels: Array
    cover: Array


def stain(pixels: Array, rng: np.random.Generator, centre: Point, radius: float, tint: Colour) -> Painted:
    """A dried liquid that filters the light by `tint`, most strongly at its edge."""
    d = _blob(pixels, rng, centre, radius, roughness=0.3)
    edge = np.exp(-(((d - 0.86) / 0.06) ** 2))
    # Bright texture is raised and absorbs less.
    uptake = 0.78 + 0.09 * _noise(rng, d.shape, radius / 4) - 0.5 * _detail(pixels).mean(axis=-1) + 0.14 * edge
    density = _falloff(d, 0.82, 1.0) * np.clip(uptake, 0, 1)
    return _blend(pixels, np.clip(pixels * np.array(tint, np.float32), 0, 1), density)


def rust(pixels: Array, rng: np.random.Generator, centre: Point, radius: float) -> Painted:
    """Corrosion: a stained halo around a pitted crust."""
    d = _blob(pixels, rng, centre, radius, roughness=0.28)
    fine, coarse = _noise(rng, d.shape, 1.1), _noise(rng, d.shape, 4.0)
    halo = 0.62 * _falloff(d, 0.3, 1.1)
    crust = _falloff(d + 0.22 * coarse, 0.55, 0.8) * _falloff(d, 0.9, 1.1)
    orange, brown = np.array([0.72, 0.43, 0.22], np.float32), np.array([0.36, 0.19, 0.10], np.float32)
    halo_pixels = pixels * (orange / 0.62)
    shade = np.clip(1 + 0.2 * fine + 0.22 * coarse, 0.3, 1.8)[..., None]
    painted = halo_pixels * (1 - crust[..., None]) + shade * (0.55 * orange + 0.45 * brown) * crust[..., None]
    return _blend(pixels, np.clip(painted, 0, 1), np.maximum(halo, 0.93 * crust))


def crack(pixels: Array, rng: np.random.Generator, start: Point, end: Point, width: float) -> Painted:
    """A jagged, tapered dark line with branches and a lit lip."""
    stem = _jagged(rng, start, end)
    lines = [(stem, width)]
    for at in rng.uniform(0.3, 0.75, 2):
        root = stem[int(at * (len(stem) - 1))]
        direction = (np.array(end) - np.array(start)) * rng.uniform(0.16, 0.28)
        turn = rng.choice([-1, 1]) * rng.uniform(0.6, 1.0)
        tip = root + np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ direction
        lines.append((_jagged(rng, (root[0], root[1]), (tip[0], tip[1])), 0.6 * width))
    painted, cover = pixels, np.zeros(pixels.shape[:2], np.float32)
    for line, thickness in lines:
        distance, along, side = _stroke(line, cover.shape)
        taper = thickness * np.clip(1.15 - np.abs(2 * along - 0.8) ** 3, 0.25, 1)
        dark = _falloff(distance, taper - 0.9, taper + 0.6)[..., None]
        lip = 0.11 * np.exp(-(((distance - taper - 1.0) / 0.9) ** 2)) * (side > 0)
        painted = painted * (1 - 0.76 * dark) + lip[..., None] * (1 - dark)
        cover = np.maximum(cover, np.maximum(dark[..., 0], lip))
    return Painted(np.clip(painted, 0, 1), cover)


def scratch(pixels: Array, rng: np.random.Generator, start: Point, end: Point, width: float) -> Painted:
    """Parallel, slightly bent gouges, each with a bright and a dark side."""
    painted, cover = pixels, np.zeros(pixels.shape[:2], np.float32)
    first, last = np.array(start), np.array(end)
    across = np.array([first[1] - last[1], last[0] - first[0]]) / np.hypot(*(last - first))
    bend = rng.uniform(-0.06, 0.06) * np.hypot(*(last - first))
    for offset, strength in ((0.0, 1.0), (3.2 * width, 0.55), (-2.6 * width, 0.4)):
        a, b = sorted(rng.uniform(0, 1, 2) * 0.3 * (offset != 0) + (0.0, 0.7 if offset else 1.0))
        knots = [first + t * (last - first) + (offset + 4 * bend * t * (1 - t)) * across for t in np.linspace(a, b, 5)]
        distance, along, side = _stroke(_smooth(np.array(knots)), cover.shape)
        # Pressure varies along the stroke.
        pressure = np.clip(
            1 + 0.5 * gaussian_filter1d(rng.standard_normal(256), 7)[(along * 255).astype(int)] * 3, 0.35, 1.3
        )
        depth = strength * pressure * np.clip(9 * along, 0, 1) * np.clip(5 * (1 - along), 0, 1)
        half = 0.5 * width
        bright = depth * np.exp(-((distance / half) ** 2) / 1.2) * (distance < 4 * half)
        shade = depth * np.exp(-(((distance - 1.6 * half) / half) ** 2)) * (side < 0)
        painted = painted * (1 - 0.75 * np.clip(shade, 0, 1)[..., None]) + 0.5 * bright[..., None]
        cover = np.maximum(cover, np.clip(np.maximum(bright, shade), 0, 1))
    return Painted(np.clip(painted, 0, 1), cover)


def chip(pixels: Array, rng: np.random.Generator, centre: Point, radius: float, inside: Colour) -> Painted:
    """A broken-out piece: a rough hollow with a shaded near wall and a lit far wall."""
    d = _blob(pixels, rng, centre, radius, roughness=0.34)
    cover = _falloff(d, 0.93, 1.02)
    floor = 0.12 * _noise(rng, d.shape, 2.2) + 0.22 * _noise(rng, d.shape, 5.0) + 0.035 * _noise(rng, d.shape, 0.8)
    height = radius * 0.55 * (np.clip(d, 0, 1) ** 3 - 1) + 1.6 * floor
    shade = _shade(gaussian_filter(height, 0.8))
    fill = np.array(inside, np.float32) * (1 + 0.16 * floor[..., None]) + 0.25 * _detail(pixels)
    painted = fill * np.clip(0.86 + 0.62 * shade, 0.25, 1.7)[..., None]
    # The surface casts a shadow over the wall nearest to the lamp.
    y, x = _grid(pixels)
    towards = ((x - centre[0]) + (y - centre[1])) / (1.41 * radius)
    painted = painted * (1 - 0.45 * np.clip(-towards - 0.1, 0, 1) * np.clip(d, 0, 1))[..., None]
    return _blend(pixels, np.clip(painted, 0, 1), cover)


def dent(pixels: Array, rng: np.random.Generator, centre: Point, radius: float) -> Painted:
    """A shallow hollow in a shiny surface: only the reflection changes."""
    d = _blob(pixels, rng, centre, radius, roughness=0.1)
    hollow = np.clip(1 - d**2, 0, 1) ** 2
    shade = _shade(-radius * 0.55 * hollow)
    rim = 0.22 * np.exp(-(((d - 0.9) / 0.1) ** 2))
    cover = _falloff(d, 0.9, 1.12)
    painted = pixels * np.clip(1 + 0.95 * shade - 0.2 * hollow + rim, 0.22, 1.9)[..., None]
    return _blend(pixels, np.clip(painted, 0, 1), cover)


def thread(pixels: Array, knots: Array, width: float, colour: Colour, twist: float) -> Painted:
    """A loose fibre or wire through the knots (N, 2), with its shadow; `twist` is the depth of its strands."""
    curve = _smooth(knots)
    distance, along, side = _stroke(curve, pixels.shape[:2])
    half = 0.5 * width
    length = np.hypot(*np.diff(curve, axis=0).T).sum()
    offset = np.clip(side / half, -1, 1)
    strands = 1 + twist * np.sin(2 * np.pi * (along * length / (1.7 * width) + 0.22 * offset))
    # A cylinder lit from the side: brightest off its axis, dark at the far edge.
    round_light = 0.42 + 0.72 * np.sqrt(np.clip(1 - (0.8 * offset - 0.3) ** 2, 0, 1))
    gloss = 0.35 * np.exp(-(((offset - 0.35) / 0.2) ** 2)) * (twist == 0)
    shaft = np.array(colour, np.float32) * (round_light * strands)[..., None] + gloss[..., None]
    shift = 0.55 * width
    shadow_distance, _, _ = _stroke(curve + shift, pixels.shape[:2])
    shadow = 0.55 * _falloff(shadow_distance, 0.2 * half, half + 0.45 * width)
    body = _falloff(distance, half - 0.6, half + 0.6)
    painted = pixels * (1 - shadow[..., None]) * (1 - body[..., None]) + shaft * body[..., None]
    return Painted(np.clip(painted, 0, 1), np.maximum(body, shadow))


def washer(pixels: Array, rng: np.random.Generator, centre: Point, radius: float, metal: Colour) -> Painted:
    """A slightly tilted washer on the surface, with its shadow."""
    y, x = _grid(pixels)
    turn, squeeze = rng.uniform(0, np.pi), rng.uniform(0.8, 0.92)

    def ring_radius(dx: float, dy: float) -> Array:
        u = np.cos(turn) * (x - centre[0] - dx) + np.sin(turn) * (y - centre[1] - dy)
        v = (-np.sin(turn) * (x - centre[0] - dx) + np.cos(turn) * (y - centre[1] - dy)) / squeeze
        return np.asarray(np.hypot(u, v) / radius)

    r = ring_radius(0, 0)
    angle = np.arctan2(y - centre[1], x - centre[0])
    soft = 0.8 / radius
    inner = 0.46
    body = _falloff(r, 1 - soft, 1 + soft) * (1 - _falloff(r, inner - soft, inner + soft))
    # Turned metal reflects in two opposite sectors; both edges are rounded.
    sheen = 0.46 + 0.16 * np.cos(2 * angle - 0.5) + 0.05 * np.cos(3 * angle + 1) + 0.02 * np.sin(60 * r)
    towards_lamp = -np.cos(angle - np.pi / 4)
    sheen = sheen + 0.3 * towards_lamp * np.exp(-(((r - 0.96) / 0.045) ** 2))
    sheen = sheen - 0.3 * towards_lamp * np.exp(-(((r - inner - 0.04) / 0.045) ** 2))
    sheen = sheen * (1 + 0.05 * _noise(rng, r.shape, 1.0) + 0.06 * _noise(rng, r.shape, 5.0))
    shifted = ring_radius(0.13 * radius, 0.16 * radius)
    shadow = 0.6 * _falloff(shifted, 0.9, 1.12) * (1 - 0.65 * _falloff(shifted, inner - 0.12, inner + 0.06))
    painted = pixels * (1 - shadow[..., None]) * (1 - body[..., None])
    painted = painted + (sheen[..., None] * np.array(metal, np.float32)) * body[..., None]
    return Painted(np.clip(painted, 0, 1), np.maximum(body, np.maximum(shadow, _falloff(r, inner, inner + 0.02))))


def tear(pixels: Array, rng: np.random.Generator, centre: Point, radius: float) -> Painted:
    """A hole in cloth: dark inside, with ends of broken yarns at its edge."""
    d = _blob(pixels, rng, centre, radius, roughness=0.3)
    behind = np.array([0.10, 0.095, 0.09], np.float32) * (1 + 0.1 * _noise(rng, d.shape, 3.0)[..., None])
    inside = _falloff(d, 0.9, 1.0)
    # The edge sags into the hole and is darker.
    sag = 0.4 * _falloff(d, 0.95, 1.15)
    painted = Painted(
        pixels * (1 - sag - inside * (1 - sag))[..., None] + behind * inside[..., None], np.maximum(sag, inside)
    )
    colour = pixels.mean(axis=(0, 1)) * 1.1
    for angle in np.arange(0, 2 * np.pi, np.pi / 7) + rng.uniform(-0.15, 0.15, 14):
        ray = np.array(centre) + np.linspace(0, 1.6 * radius, 80)[:, None] * np.array([np.cos(angle), np.sin(angle)])
        columns, rows = np.clip(ray.astype(int), 0, np.array(d.shape[::-1]) - 1).T
        root = ray[int(np.argmax(d[rows, columns] > 1.0))]
        # Yarns run along the axes of the image: an end starts along the nearer axis, then curls.
        axis = np.round(angle / (np.pi / 2)) * np.pi / 2 + rng.uniform(-0.25, 0.25)
        reach = radius * rng.uniform(0.3, 0.8) * np.array([np.cos(axis), np.sin(axis)])
        curl = rng.uniform(-0.3, 0.3) * np.array([-reach[1], reach[0]])
        tone = rng.uniform(0.75, 1.15) * colour
        knots = np.stack([root, root - 0.5 * reach + curl, root - reach]) + rng.uniform(-1.5, 1.5, (3, 2))
        end = thread(painted.pixels, knots, 3.4, (tone[0], tone[1], tone[2]), twist=0.15)
        painted = Painted(end.pixels, np.maximum(painted.cover, end.cover))
    return painted


def ink(pixels: Array, rng: np.random.Generator, knots: Array, width: float, tint: Colour) -> Painted:
    """A felt-pen stroke through the knots (N, 2) that filters the light by `tint` and fades along its length."""
    distance, along, _ = _stroke(_smooth(knots), pixels.shape[:2])
    half = 0.5 * width * (1 + 0.05 * _noise(rng, distance.shape, 3.0))
    streaks = 0.06 * _noise(rng, distance.shape, 1.2) + 0.1 * np.clip(distance / half, 0, 1) ** 3
    density = _falloff(distance, half - 1, half + 1) * np.clip(0.9 - 0.22 * along + streaks, 0, 1)
    return _blend(pixels, pixels * np.array(tint, np.float32), density)


def _blend(pixels: Array, painted: Array, cover: Array) -> Painted:
    return Painted(np.clip(pixels + (painted - pixels) * cover[..., None], 0, 1), np.clip(cover, 0, 1))


def _grid(pixels: Array) -> tuple[Array, Array]:
    y, x = np.mgrid[: pixels.shape[0], : pixels.shape[1]].astype(np.float32)
    return y, x


def _noise(rng: np.random.Generator, shape: tuple[int, ...], grain: float) -> Array:
    """Smooth noise of standard deviation 1 with a correlation length of about `grain` pixels."""
    field = gaussian_filter(rng.standard_normal(shape, np.float32), grain, mode="wrap", truncate=3)
    return np.asarray(field / field.std())


def _blob(pixels: Array, rng: np.random.Generator, centre: Point, radius: float, roughness: float) -> Array:
    """(H, W) distance from `centre` in units of an irregular outline: below 1 is inside."""
    y, x = _grid(pixels)
    turn, stretch = rng.uniform(0, np.pi), rng.uniform(1.0, 1.35)
    u = np.cos(turn) * (x - centre[0]) + np.sin(turn) * (y - centre[1])
    v = -np.sin(turn) * (x - centre[0]) + np.cos(turn) * (y - centre[1])
    d = np.hypot(u / stretch, v * stretch) / radius
    wobble = 0.7 * _noise(rng, d.shape, radius / 2.5) + 0.3 * _noise(rng, d.shape, radius / 8)
    # Damped towards the centre, which stays inside.
    return np.asarray(d * (1 + roughness * 0.7 * np.clip(wobble, -1.6, 1.6) * np.clip(2 * d, 0, 1)))


def _falloff(values: Array, full: float | Array, none: float | Array) -> Array:
    """1 up to `full`, 0 from `none` on, smooth between them."""
    t = np.clip((none - values) / (none - full), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def _shade(height: Array) -> Array:
    """Light on a height field relative to flat ground, about -1 to 1."""
    down, right = np.gradient(height)
    slope = (down + right) / np.sqrt(2)
    return np.asarray(slope / np.sqrt(1 + slope**2))


def _detail(pixels: Array) -> Array:
    return np.asarray(pixels - gaussian_filter(pixels, (4, 4, 0)))


def _jagged(rng: np.random.Generator, start: Point, end: Point) -> Array:
    """(N, 2) points from `start` to `end` by recursive midpoint displacement."""
    points = np.array([start, end], dtype=np.float64)
    for _ in range(6):
        steps = np.diff(points, axis=0)
        across = np.stack([-steps[:, 1], steps[:, 0]], axis=1)
        middle = points[:-1] + steps / 2 + across * rng.uniform(-0.22, 0.22, (len(steps), 1))
        points = np.insert(points, np.arange(1, len(points)), middle, axis=0)
    return points


def _smooth(knots: Array) -> Array:
    """(400, 2) points of the cubic spline through the knots (N, 2)."""
    return np.asarray(CubicSpline(np.linspace(0, 1, len(knots)), knots)(np.linspace(0, 1, 400)))


def _stroke(curve: Array, shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Distance to a curve, position along it from 0 to 1, and offset towards the lamp in pixels, each (H, W)."""
    dense = np.stack(
        [np.interp(np.linspace(0, len(curve) - 1, 1200), np.arange(len(curve)), c) for c in curve.T], axis=1
    )
    distance = np.full(shape, 1e3, np.float32)
    along, side = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    reach = 16
    (left, top), (right, bottom) = dense.min(0).astype(int) - reach, dense.max(0).astype(int) + reach
    window = (slice(max(top, 0), min(bottom, shape[0])), slice(max(left, 0), min(right, shape[1])))
    y, x = np.mgrid[window]
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    near, index = cKDTree(dense).query(points, distance_upper_bound=reach)
    nearest = np.minimum(index, len(dense) - 1)
    away = points - dense[nearest]
    distance[window] = np.where(np.isfinite(near), near, 1e3).reshape(x.shape)
    along[window] = (nearest / (len(dense) - 1)).reshape(x.shape)
    side[window] = (-away.sum(axis=1) / np.sqrt(2)).reshape(x.shape)
    return distance, along, side
