"""Overlays of a prediction: the image, its anomaly map on a fixed colour scale, and the surviving tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.prediction import Prediction

# Dark violet to pale yellow: each anchor is lighter than the one before, so the order holds in greyscale.
_ANCHORS = ((48, 18, 98), (112, 26, 128), (186, 44, 104), (236, 96, 52), (252, 168, 40), (253, 228, 104))
# Share of the scale at which the map starts to show, share from which its opacity is full, and that opacity.
_FADE_FROM, _FADE_TO, _OPACITY = 0.25, 0.6, 0.75
_DROPPED_EARLY, _DROPPED_LATE, _KEPT = 0, 1, 2
_INK, _MUTED, _PAPER = (24, 28, 36), (104, 112, 124), (255, 255, 255)
_DARK, _TINT, _OUTLINE = (14, 16, 22), (58, 96, 168), (255, 255, 255)
_BAD, _FINE, _UNSURE = (190, 38, 38), (22, 122, 72), (138, 90, 0)
_MIN_SIDE = 48  # pixels; limits extreme aspect ratios
_MIN_OUTLINED = 10  # pixels; around smaller cells an outline would hide their content
_MARGIN, _GAP, _MIN_COLUMN = 14, 14, 236


class Panels(NamedTuple):
    """Three pictures of the same size, at the aspect ratio of the original image."""

    image: Image.Image
    overlay: Image.Image
    survivors: Image.Image


def colour_map(values: Array, scale: float = 1.0) -> Array:
    """(..., 4) floats: red, green, blue in 0..255 and opacity in 0..1 of map values on the fixed scale 0..`scale`."""
    return _colour_table()[_colour_indices(values, scale)]


def _colour_indices(values: Array, scale: float) -> Array:
    """uint8 rows of the colour table, in the shape of `values`."""
    if not scale > 0:
        raise KeepADError(f"The colour scale must end above 0, not at {scale}; 1.0 covers the whole range of a map.")
    steps = np.asarray(values, np.float32) * np.float32(255 / scale)
    return np.asarray(np.rint(np.clip(steps, 0, 255)), np.uint8)


@cache
def _colour_table() -> Array:
    """(256, 4) red, green, blue and opacity."""
    share = np.linspace(0, 1, 256)
    stops = np.linspace(0, 1, len(_ANCHORS))
    rgb = [np.interp(share, stops, channel) for channel in zip(*_ANCHORS, strict=True)]
    fade = np.clip((share - _FADE_FROM) / (_FADE_TO - _FADE_FROM), 0, 1)
    return np.stack([*rgb, _OPACITY * fade * fade * (3 - 2 * fade)], axis=1).astype(np.float32)


def make_panels(prediction: Prediction, *, scale: float = 1.0, long_side: int = 518) -> Panels:
    """Image, anomaly map over it, and surviving tokens, without text, `long_side` pixels on their longer side."""
    height, width = _panel_size(prediction.image_size, long_side)
    picture = Image.fromarray(prediction.image).resize((width, height), Image.Resampling.BICUBIC)
    return Panels(picture, _overlay(picture, prediction, scale), _survivors(picture, prediction))


def draw_panels(prediction: Prediction, scale: float = 1.0, panels: Panels | None = None) -> Image.Image:
    """One picture of image, anomaly map, surviving tokens and scalar results.

    Colours have the fixed scale 0..`scale`, so pictures of different images are comparable; the map is transparent
    below a quarter of it. Surviving tokens keep their colours, tokens dropped by the deep router are dimmed and blue,
    tokens dropped earlier are dark.

    Args:
        prediction: The result to draw.
        scale: Map value of the last colour.
        panels: Result of `make_panels` at the same scale; made here if None.

    Example:
        ```python
        draw_panels(model("part.png"), scale=0.5).save("part.overlay.png")
        ```
    """
    panels = panels or make_panels(prediction, scale=scale)
    width, height = panels.image.size
    column = max(width, _MIN_COLUMN)
    total = 2 * _MARGIN + 3 * column + 2 * _GAP
    lines = _wrap(_caption(prediction), total - 2 * _MARGIN)
    top = _MARGIN + 20
    below = top + height + 8
    caption = below + 26
    canvas = Image.new("RGB", (total, caption + 22 * len(lines) + _MARGIN - 6), _PAPER)
    draw = ImageDraw.Draw(canvas)
    titles = ("image", "anomaly map", "surviving tokens")
    lefts = [_MARGIN + number * (column + _GAP) for number in range(3)]
    for left, title, panel in zip(lefts, titles, panels, strict=True):
        draw.text((left, _MARGIN - 4), title, _INK, _font(14))
        canvas.paste(panel, (left, top))
    original = f"{prediction.image_size[1]} x {prediction.image_size[0]} px"
    name = "" if prediction.path is None else prediction.path.name
    draw.text((lefts[0], below), _shorten(f"{name}  {original}".strip(), column, 12), _MUTED, _font(12))
    _draw_scale(canvas, (lefts[1], below), scale)
    _draw_legend(canvas, (lefts[2], below))
    for number, line in enumerate(lines):
        x = float(_MARGIN)
        for text, colour in line:
            draw.text((x, caption + 22 * number), text, colour, _font(15))
            x += _font(15).getlength(text)
    return canvas


def write_picture(picture: Image.Image, path: Path) -> None:
    """Write a JPEG, ten times as fast, where the suffix is .jpg or .jpeg; else a lightly compressed PNG."""
    if path.suffix.lower() in (".jpg", ".jpeg"):
        picture.save(path, format="JPEG", quality=92, subsampling=0)
    else:
        picture.save(path, format="PNG", compress_level=1)


def _panel_size(image_size: tuple[int, int], long_side: int) -> tuple[int, int]:
    """Height and width of a panel."""
    factor = long_side / max(image_size)
    height, width = (max(round(side * factor), min(_MIN_SIDE, long_side)) for side in image_size)
    return height, width


def _overlay(picture: Image.Image, prediction: Prediction, scale: float) -> Image.Image:
    anomaly_map = prediction.map_at((picture.height, picture.width))
    indices = Image.fromarray(_colour_indices(anomaly_map, scale))
    red, green, blue, opacity = (indices.point(column) for column in _lookups())
    drawn = Image.composite(Image.merge("RGB", (red, green, blue)), picture, opacity)
    mask = prediction.mask_at()
    if mask is None:
        return drawn
    mask = _resized_mask(mask, (picture.height, picture.width))
    grown = _grow(mask)
    # White inside of a black line shows on every colour.
    drawn = _painted(drawn, _DARK, _grow(grown) & ~grown)
    return _painted(drawn, _OUTLINE, grown & ~_shrink(mask))


def _resized_mask(mask: Array, size: tuple[int, int]) -> Array:
    """The mask at another (height, width); True wherever it reaches, so that small regions of large images show."""
    for axis, length in enumerate(size):
        starts = np.arange(length) * mask.shape[axis] // length
        shrinks = length < mask.shape[axis]
        mask = np.logical_or.reduceat(mask, starts, axis=axis) if shrinks else mask.take(starts, axis=axis)
    return mask


@cache
def _lookups() -> list[list[int]]:
    """The colour table as lookup tables for `Image.point`: red, green, blue and opacity, 256 integers each."""
    table = _colour_table() * np.array([1, 1, 1, 255], np.float32)
    return [[int(value) for value in column] for column in np.rint(table).T]


def _survivors(picture: Image.Image, prediction: Prediction) -> Image.Image:
    rows, columns = prediction.grid
    state = np.full(rows * columns, _DROPPED_EARLY, np.uint8)
    state[prediction.survivors_shallow] = _DROPPED_LATE
    state[prediction.survivors] = _KEPT
    width, height = picture.size
    y, x = np.arange(height) * rows // height, np.arange(width) * columns // width
    states = state.reshape(rows, columns)[y][:, x]  # (height, width)
    dimmed = Image.blend(picture, Image.new("RGB", picture.size, _TINT), 0.45)
    dark = Image.blend(picture.convert("L").convert("RGB"), Image.new("RGB", picture.size, _DARK), 0.82)
    drawn = Image.composite(dimmed, picture, _stencil(states == _DROPPED_LATE))
    drawn = Image.composite(dark, drawn, _stencil(states == _DROPPED_EARLY))
    if min(height / rows, width / columns) >= _MIN_OUTLINED:
        kept = states == _KEPT
        drawn = _painted(drawn, _OUTLINE, kept & ~_shrink(kept), opacity=166)
    return drawn


def _stencil(mask: Array, opacity: int = 255) -> Image.Image:
    return Image.fromarray(mask.view(np.uint8) * np.uint8(opacity))


def _painted(picture: Image.Image, colour: tuple[int, int, int], mask: Array, opacity: int = 255) -> Image.Image:
    return Image.composite(Image.new("RGB", picture.size, colour), picture, _stencil(mask, opacity))


def _grow(mask: Array) -> Array:
    """The mask dilated by one pixel, 4-connected."""
    grown = np.array(mask)
    grown[1:] |= mask[:-1]
    grown[:-1] |= mask[1:]
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    return grown


def _shrink(mask: Array) -> Array:
    """The mask eroded by one pixel, 4-connected; the border of the picture does not erode it."""
    return ~_grow(~mask)


def _caption(prediction: Prediction) -> list[tuple[str, tuple[int, int, int]]]:
    label = prediction.pred_label
    pieces = [(f"score {prediction.pred_score:.3f}", _INK)]
    if prediction.verdict is not None:
        pieces.append((prediction.verdict, {"defect": _BAD, "review": _UNSURE, "ok": _FINE}[prediction.verdict]))
    elif label is not None:
        pieces.append(("anomalous", _BAD) if label else ("normal", _FINE))
    if prediction.p_value is not None:
        pieces.append((f"p {prediction.p_value:.3g}", _INK))
    kept = [prediction.keep_shallow, prediction.keep_final]
    if prediction.keep_pixels < 1:
        kept.insert(0, prediction.keep_pixels)
    pieces.append((f"keep {' -> '.join(f'{share:.1%}' for share in kept)}", _INK))
    if prediction.evidence is not None:
        pieces.append((f"evidence {prediction.evidence:.3f}", _INK))
    pieces.append((prediction.point, _INK))
    return pieces


def _wrap(pieces: list[tuple[str, tuple[int, int, int]]], width: float) -> list[list[tuple[str, tuple[int, int, int]]]]:
    """Lines of pieces joined by dots, each at most `width` pixels."""
    lines: list[list[tuple[str, tuple[int, int, int]]]] = [[]]
    used = 0.0
    for text, colour in pieces:
        length = _font(15).getlength("   ·   " + text)
        if lines[-1] and used + length > width:
            lines.append([])
            used = 0.0
        if lines[-1]:
            lines[-1].append(("   ·   ", _MUTED))
        lines[-1].append((text, colour))
        used += length
    return lines


def _draw_scale(canvas: Image.Image, corner: tuple[int, int], scale: float) -> None:
    """The colour scale over white, with its ends."""
    draw = ImageDraw.Draw(canvas)
    x, y = corner
    length, thickness = 132, 10
    colours = colour_map(np.linspace(0, scale, length), scale)
    strip = 255 * (1 - colours[:, 3:]) + colours[:, :3] * colours[:, 3:]
    text_width = _font(12).getlength("0") + 6
    left = int(x + text_width)
    canvas.paste(Image.fromarray(np.repeat(np.rint(strip)[None].astype(np.uint8), thickness, axis=0)), (left, y + 3))
    draw.rectangle((left - 1, y + 2, left + length, y + 3 + thickness), outline=_MUTED)
    draw.text((x, y), "0", _MUTED, _font(12))
    draw.text((left + length + 6, y), f"{scale:g}, fixed scale", _MUTED, _font(12))


def _draw_legend(canvas: Image.Image, corner: tuple[int, int]) -> None:
    draw = ImageDraw.Draw(canvas)
    x, y = float(corner[0]), corner[1]
    late = tuple(int(0.55 * 188 + 0.45 * value) for value in _TINT)
    early = tuple(int(0.18 * 188 + 0.82 * value) for value in _DARK)
    for fill, text in ((_PAPER, "kept"), (late, "dropped late"), (early, "dropped early")):
        draw.rectangle((x, y + 3, x + 10, y + 13), fill=fill, outline=_MUTED)
        draw.text((x + 15, y), text, _MUTED, _font(12))
        x += 15 + _font(12).getlength(text) + 9


def _shorten(text: str, width: float, size: int) -> str:
    """The text, its middle left out where it is wider than `width` pixels."""
    if _font(size).getlength(text) <= width:
        return text
    half = len(text) // 2
    while half > 1 and _font(size).getlength(f"{text[:half]}...{text[-half:]}") > width:
        half -= 1
    return f"{text[:half]}...{text[-half:]}"


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
