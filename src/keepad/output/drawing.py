"""Pictures of a prediction: the image, its anomaly map on a fixed colour scale, and the tokens that survived."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.prediction import Prediction

# Dark violet to pale yellow: each anchor is lighter than the one before, so order survives grey printing.
_ANCHORS = ((48, 18, 98), (112, 26, 128), (186, 44, 104), (236, 96, 52), (252, 168, 40), (253, 228, 104))
# Share of the scale below which the map stays invisible, from which it is fully drawn, and how opaque it then is.
_FADE_FROM, _FADE_TO, _OPACITY = 0.25, 0.6, 0.75
_DROPPED_EARLY, _DROPPED_LATE, _KEPT = 0, 1, 2
_INK, _MUTED, _PAPER = (24, 28, 36), (104, 112, 124), (255, 255, 255)
_DARK, _TINT, _OUTLINE = (14, 16, 22), (58, 96, 168), (255, 255, 255)
_BAD, _FINE = (190, 38, 38), (22, 122, 72)
# An extreme aspect ratio is drawn less extreme, so that there is something to see.
_MIN_SIDE = 48
_MIN_OUTLINED = 10
_MARGIN, _GAP, _MIN_COLUMN = 14, 14, 236


class Panels(NamedTuple):
    """Three pictures of the same size, at the aspect ratio of the image as it was given."""

    image: Image.Image
    overlay: Image.Image
    survivors: Image.Image


def colour_map(values: Array, scale: float = 1.0) -> Array:
    """(..., 4) floats: red, green, blue in 0..255 and opacity in 0..1 of map values on the fixed scale 0..`scale`."""
    return _colour_table()[_steps(values, scale)]


def _steps(values: Array, scale: float) -> Array:
    """Map values as places in the table of colours."""
    if not scale > 0:
        raise KeepADError(f"The colour scale must end above 0, not at {scale}; 1.0 covers all that a map can hold.")
    steps = np.asarray(values, np.float32) * np.float32(255 / scale)
    return np.rint(np.clip(steps, 0, 255)).astype(np.uint8)


@cache
def _colour_table() -> Array:
    """(256, 4): as many steps as eight bits of colour can show."""
    share = np.linspace(0, 1, 256)
    stops = np.linspace(0, 1, len(_ANCHORS))
    rgb = [np.interp(share, stops, channel) for channel in zip(*_ANCHORS, strict=True)]
    fade = np.clip((share - _FADE_FROM) / (_FADE_TO - _FADE_FROM), 0, 1)
    return np.stack([*rgb, _OPACITY * fade * fade * (3 - 2 * fade)], axis=1).astype(np.float32)


def make_panels(prediction: Prediction, *, scale: float = 1.0, long_side: int = 518) -> Panels:
    """Image, anomaly map over it, and survivors, without words, `long_side` pixels on their longer side."""
    width, height = _panel_size(prediction.image_size, long_side)
    picture = Image.fromarray(prediction.image).resize((width, height), Image.Resampling.BICUBIC)
    return Panels(picture, _overlay(picture, prediction, scale), _survivors(picture, prediction))


def draw_panels(prediction: Prediction, scale: float = 1.0, panels: Panels | None = None) -> Image.Image:
    """One picture with everything: image, anomaly map on the fixed scale 0..`scale`, surviving tokens, and the numbers.

    The colours never stretch to the image at hand, so two pictures drawn with one scale can be compared. The map is
    transparent below a quarter of the scale. In the third panel survivors keep their colours, tokens that the deep
    router dropped are dimmed and blue, and those that were dropped before are dark.

    Args:
        prediction: What to draw.
        scale: End of the colour scale.
        panels: What `make_panels` made of it at the same scale; made here if None.
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
    original = f"{prediction.image_size[0]} x {prediction.image_size[1]} px"
    name = "" if prediction.path is None else prediction.path.name
    draw.text((lefts[0], below), _shorten(f"{name}  {original}".strip(), column, 12), _MUTED, _font(12))
    _draw_bar(canvas, (lefts[1], below), scale)
    _draw_legend(canvas, (lefts[2], below))
    for number, line in enumerate(lines):
        x = float(_MARGIN)
        for text, colour in line:
            draw.text((x, caption + 22 * number), text, colour, _font(15))
            x += _font(15).getlength(text)
    return canvas


def write_picture(picture: Image.Image, path: Path) -> None:
    """As a JPEG, which takes a tenth of the time, where the name says so; else as a PNG, packed lightly."""
    if path.suffix.lower() in (".jpg", ".jpeg"):
        picture.save(path, format="JPEG", quality=92, subsampling=0)
    else:
        picture.save(path, format="PNG", compress_level=1)


def _panel_size(image_size: tuple[int, int], long_side: int) -> tuple[int, int]:
    factor = long_side / max(image_size)
    width, height = (max(round(side * factor), min(_MIN_SIDE, long_side)) for side in image_size)
    return width, height


def _overlay(picture: Image.Image, prediction: Prediction, scale: float) -> Image.Image:
    anomaly = Image.fromarray(np.ascontiguousarray(prediction.anomaly_map, np.float32))
    steps = Image.fromarray(_steps(np.asarray(anomaly.resize(picture.size, Image.Resampling.BILINEAR)), scale))
    red, green, blue, opacity = (steps.point(column) for column in _lookups())
    drawn = Image.composite(Image.merge("RGB", (red, green, blue)), picture, opacity)
    mask = prediction.pred_mask
    if mask is None:
        return drawn
    inside = np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST))
    grown = _grow(inside)
    # White inside of a black line shows on every colour.
    drawn = _painted(drawn, _DARK, _grow(grown) & ~grown)
    return _painted(drawn, _OUTLINE, grown & ~_shrink(inside))


@cache
def _lookups() -> list[list[int]]:
    """The table of colours as PIL looks them up: red, green, blue and opacity of each step, 0..255."""
    table = _colour_table() * np.array([1, 1, 1, 255], np.float32)
    return [[int(value) for value in column] for column in np.rint(table).T]


def _survivors(picture: Image.Image, prediction: Prediction) -> Image.Image:
    rows, columns = prediction.grid
    fate = np.full(rows * columns, _DROPPED_EARLY, np.uint8)
    fate[prediction.survivors_shallow] = _DROPPED_LATE
    fate[prediction.survivors] = _KEPT
    width, height = picture.size
    y, x = np.arange(height) * rows // height, np.arange(width) * columns // width
    fates = fate.reshape(rows, columns)[y][:, x]
    dimmed = Image.blend(picture, Image.new("RGB", picture.size, _TINT), 0.45)
    dark = Image.blend(picture.convert("L").convert("RGB"), Image.new("RGB", picture.size, _DARK), 0.82)
    drawn = Image.composite(dimmed, picture, _stencil(fates == _DROPPED_LATE))
    drawn = Image.composite(dark, drawn, _stencil(fates == _DROPPED_EARLY))
    # Around small cells a line would hide more than it shows.
    if min(height / rows, width / columns) >= _MIN_OUTLINED:
        kept = fates == _KEPT
        drawn = _painted(drawn, _OUTLINE, kept & ~_shrink(kept), opacity=166)
    return drawn


def _stencil(where: Array, opacity: int = 255) -> Image.Image:
    return Image.fromarray(where.view(np.uint8) * np.uint8(opacity))


def _painted(picture: Image.Image, colour: tuple[int, int, int], where: Array, opacity: int = 255) -> Image.Image:
    return Image.composite(Image.new("RGB", picture.size, colour), picture, _stencil(where, opacity))


def _grow(mask: Array) -> Array:
    """The mask and its four neighbours."""
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:-1] |= mask[1:]
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    return grown


def _shrink(mask: Array) -> Array:
    """The mask without the pixels that touch its outside; the border of the picture is no outside."""
    return ~_grow(~mask)


def _to_image(pixels: Array) -> Image.Image:
    return Image.fromarray(np.clip(pixels + 0.5, 0, 255).astype(np.uint8))


def _caption(prediction: Prediction) -> list[tuple[str, tuple[int, int, int]]]:
    label = prediction.pred_label
    pieces = [(f"score {prediction.pred_score:.3f}", _INK)]
    if label is not None:
        pieces.append(("anomalous", _BAD) if label else ("normal", _FINE))
    kept = [prediction.keep_shallow, prediction.keep_final]
    if prediction.keep_pixels < 1:
        kept.insert(0, prediction.keep_pixels)
    pieces.append((f"keep {' -> '.join(f'{share:.1%}' for share in kept)}", _INK))
    if prediction.evidence is not None:
        pieces.append((f"evidence {prediction.evidence:.3f}", _INK))
    pieces.append((prediction.point, _INK))
    return pieces


def _wrap(pieces: list[tuple[str, tuple[int, int, int]]], width: float) -> list[list[tuple[str, tuple[int, int, int]]]]:
    """The pieces joined by dots, in as many lines as they need."""
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


def _draw_bar(canvas: Image.Image, corner: tuple[int, int], scale: float) -> None:
    """The colour scale as it lies over white, with its numbers."""
    draw = ImageDraw.Draw(canvas)
    x, y = corner
    length, thickness = 132, 10
    colours = colour_map(np.linspace(0, scale, length), scale)
    strip = 255 * (1 - colours[:, 3:]) + colours[:, :3] * colours[:, 3:]
    text_width = _font(12).getlength("0") + 6
    left = int(x + text_width)
    canvas.paste(_to_image(np.repeat(strip[None], thickness, axis=0)), (left, y + 3))
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
    """The text, its middle cut out where it is too wide."""
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
