"""Framing: how a photograph of any shape becomes an input of whole patches, and where it lies in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.errors import ImageError, KeepADError
from keepad.images import InputImage, to_input
from keepad.inference import Inference
from keepad.roi import Roi, continued, painted, read_roi, roi_at, shrunk
from keepad.routing import PixelRouting
from keepad.tiles import Tiling, plan_tiles, tiling_of

FITS = ("squash", "pad", "native", "auto")
VIEWS = (1, 2, 4)
MOST_PATCHES = 6400  # of one input; comparing tokens takes memory with their square
_FEWEST = 4  # patches along a side
_ALIKE = 1.25  # ratio of aspect ratios up to which `auto` squashes


@dataclass(frozen=True)
class Framing:
    """How photographs become inputs.

    Attributes:
        fit: "squash" to the network's input size; "pad" to it with the aspect ratio kept; "native", the image's own
            size in whole patches; or "auto": squash where the aspect ratio is about that of the input, else as many
            patches in the image's own aspect ratio.
        tiles: How large images are cut into tiles, or None to take them whole.
        roi: Where to look, or None for everywhere.
        views: Views of an image that are averaged: 1, 2 (mirrored too) or 4 (upside down and turned around too).
    """

    fit: str = "squash"
    tiles: Tiling | None = None
    roi: Roi | None = None
    views: int = 1

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise KeepADError(f"an image is fitted by {', '.join(FITS)}, not by {self.fit!r}.")
        if self.views not in VIEWS:
            raise KeepADError(f"1, 2 or 4 views can be averaged, not {self.views!r}.")
        if self.tiles is not None and self.fit != "squash":
            raise KeepADError(f"tiles keep the shape of an image already; leave --fit {self.fit} out, or --tiles.")

    @property
    def any_shape(self) -> bool:
        """Whether inputs have shapes of their own, which exported networks do not take."""
        return self.fit in ("native", "auto")

    @property
    def plain(self) -> bool:
        """Whether every image is squashed to the input, and nothing else is done."""
        return self == SQUASHED

    def description(self) -> dict[str, Any]:
        """All that decides what the inputs are, ready for JSON."""
        tiles = None if self.tiles is None else asdict(self.tiles)
        roi = None if self.roi is None else self.roi.to_json()
        return {"fit": self.fit, "tiles": tiles, "views": self.views, "roi": roi}


SQUASHED = Framing()


@dataclass(frozen=True)
class Shape:
    """What an input may look like.

    Attributes:
        size: Height and width of the network's input.
        patch: Height and width of a patch.
        fixed: Whether inputs have that size only, as those of an exported network.
    """

    size: tuple[int, int]
    patch: tuple[int, int]
    fixed: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patch grid."""
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]


def framing_of(
    fit: str = "squash",
    tiles: str | int | None = None,
    overlap: int | None = None,
    roi: str | Path | None = None,
    ignore: str | Path | None = None,
    views: int = 1,
) -> Framing:
    """The framing that was asked for, its files read; see `Framing`, `tiling_of` and `read_roi`."""
    return Framing(fit, tiling_of(tiles, overlap), read_roi(roi, ignore), views)


def framed(image: Image.Image, framing: Framing, shape: Shape, path: Path | None = None) -> InputImage:
    """An upright RGB image as an input.

    Raises:
        KeepADError: It has too many patches, or nothing of it is looked at.
    """
    size = image.height, image.width
    if framing.plain:
        return InputImage(to_input(image, shape.size), size, shape.size, path)
    if framing.tiles is not None:
        plan = plan_tiles(size, shape.size, shape.patch, framing.tiles)
        whole_image = framed(image, replace(framing, tiles=None), shape, path)
        if plan is None:
            return replace(whole_image, fit="tiles: one, so it was taken whole")
        height, width = (cells * side for cells, side in zip(plan.tile, shape.patch, strict=True))
        return replace(whole_image, picture=image, plan=plan, fit=f"tiles: {len(plan.corners)} of {height}x{width}")
    whole, content, fit = fitted(size, framing.fit, shape)
    roi = None
    some: Array = np.ones(content, dtype=bool)
    pure: Array = some
    if framing.roi is not None:
        roi = roi_at(framing.roi, size, "the image" if path is None else f"'{path}'")
        image = painted(image, roi)
        some, pure = shrunk(roi, content)
    pixels = continued(to_input(image, content), pure)
    margin = [(0, whole[axis] - content[axis]) for axis in (0, 1)]
    beyond = [(0, gap // side) for (_, gap), side in zip(margin, shape.patch, strict=True)]
    inside: Array = np.pad(cells_with(some, shape.patch), beyond)
    pixels = np.pad(pixels, [*margin, (0, 0)], mode="edge")
    counted = None if inside.all() else inside.reshape(-1)
    return InputImage(pixels, size, content, path, inside=counted, roi=roi, fit=fit)


def check_input(image: InputImage, framing: Framing, shape: Shape) -> None:
    """Raise an ImageError unless an image was prepared for a detector of this framing and shape.

    Where inputs may have shapes of their own, any in whole patches will do.
    """
    height, width, _ = image.pixels.shape
    whole = height % shape.patch[0] == 0 and width % shape.patch[1] == 0
    any_size = framing.any_shape and not shape.fixed and whole
    if ((height, width) != shape.size and not any_size) or (framing.tiles is None and image.plan is not None):
        raise ImageError(
            f"an image of {height}x{width} was prepared for another detector; prepare it with this one, which takes "
            f"{shape.size[0]}x{shape.size[1]}."
        )


def cropped(result: Inference, content: tuple[int, int], patch: tuple[int, int]) -> Inference:
    """The result of an image without the padding to its right and below it."""
    rows, columns = content[0] // patch[0], content[1] // patch[1]
    if result.patch_map.shape == (rows, columns):
        return result
    across = result.patch_map.shape[1]

    def moved(cells: Array) -> Array:
        """Grid indices on the grid without padding."""
        index: Array = cells // across * columns + cells % across
        return index

    def kept(values: Array) -> Array:
        """(N,) values of the cells without padding."""
        part: Array = values.reshape(result.patch_map.shape)[:rows, :columns].reshape(-1)
        return part

    routing, match = result.pixel_routing, result.match
    if routing is not None:
        owner = kept(routing.owner)
        routing = PixelRouting(moved(routing.index), np.where(owner < 0, -1, moved(owner)), kept(routing.bound))
    inside = None if result.inside is None else kept(result.inside)
    return replace(
        result,
        patch_map=result.patch_map[:rows, :columns],
        anomaly_map=result.anomaly_map[: content[0], : content[1]],
        survivors_shallow=moved(result.survivors_shallow),
        survivors=moved(result.survivors),
        pixel_routing=routing,
        match=None if match is None else replace(match, cells=moved(match.cells)),
        inside=None if inside is None or inside.all() else inside,
    )


def cells_with(pixels: Array, patch: tuple[int, int]) -> Array:
    """(rows, columns) bool of the patches that hold any True pixel of (H, W)."""
    rows, columns = pixels.shape[0] // patch[0], pixels.shape[1] // patch[1]
    return np.asarray(pixels.reshape(rows, patch[0], columns, patch[1]).any(axis=(1, 3)))


def fitted(size: tuple[int, int], fit: str, shape: Shape) -> tuple[tuple[int, int], tuple[int, int], str | None]:
    """Height and width of the input of an image of `size`, those of the image in it, and in words what was chosen."""
    chosen = fit
    if fit == "auto":
        chosen = "squash" if _unlike(size, shape.size) <= _ALIKE else "pad" if shape.fixed else "match"
    if chosen == "squash":
        whole = content = shape.size
    elif chosen == "pad":
        scale = min(inner / own for inner, own in zip(shape.size, size, strict=True))
        whole, content = shape.size, _in_patches((size[0] * scale, size[1] * scale), shape, least=1)
    elif shape.fixed:
        raise KeepADError(
            f"an exported network takes inputs of {shape.size[0]}x{shape.size[1]} only, so --fit {fit} cannot be used; "
            "choose pad or squash, or --engine torch."
        )
    elif chosen == "native":
        whole = content = _in_patches(size, shape, least=_FEWEST)
        _refuse_large(whole, shape, size)
    else:
        aspect = size[0] / shape.patch[0] / (size[1] / shape.patch[1])
        cells = shape.grid[0] * shape.grid[1]
        most = cells / _FEWEST  # of the longer side, for a thin strip
        sides = min(sqrt(cells * aspect), most) * shape.patch[0], min(sqrt(cells / aspect), most) * shape.patch[1]
        whole = content = _in_patches(sides, shape, least=_FEWEST)
        _refuse_large(whole, shape, size)
    if fit == "squash":
        return whole, content, None
    padding = "" if whole == content else " and padding"
    return whole, content, f"{fit}: {chosen} to {content[0]}x{content[1]}{padding}"


def _unlike(size: tuple[int, int], other: tuple[int, int]) -> float:
    """Ratio of the aspect ratios of two sizes, 1 or more."""
    ratio = size[0] * other[1] / (size[1] * other[0])
    return max(ratio, 1 / ratio)


def _in_patches(size: tuple[float, float], shape: Shape, least: int) -> tuple[int, int]:
    """The nearest size in whole patches, at least so many along each side."""
    rows, columns = (max(least, round(side / patch)) for side, patch in zip(size, shape.patch, strict=True))
    return rows * shape.patch[0], columns * shape.patch[1]


def _refuse_large(whole: tuple[int, int], shape: Shape, size: tuple[int, int]) -> None:
    patches = whole[0] // shape.patch[0] * (whole[1] // shape.patch[1])
    if patches > MOST_PATCHES:
        raise KeepADError(
            f"an image of {size[1]} x {size[0]} pixels has {patches} patches, more than the {MOST_PATCHES} that are "
            "run at once; cut it with --tiles auto, or use --fit auto."
        )


def size_of(text: str | int | tuple[int, int]) -> tuple[int, int]:
    """Height and width that were given as such, or typed as HxW or as the side of a square."""
    if isinstance(text, tuple):
        return text
    parts = str(text).lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise KeepADError(f"an image size is HxW in pixels such as 266x1036, or one side such as 518, not {text!r}.")
    return int(parts[0]), int(parts[-1])
