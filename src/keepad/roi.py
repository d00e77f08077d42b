"""Region of interest: where a photograph is looked at, from a mask or from polygons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.images import MAX_PIXELS, opened

_FORM = 'polygons as [[x, y], ...], as a list of these, or as {"polygons": [...]}'


@dataclass(frozen=True, eq=False)
class Shape:
    """Pixels that a file marks.

    Attributes:
        path: The file.
        marked: (H, W) bool of a mask, or None for polygons.
        polygons: (k, 2) x, y corners of each polygon; a pixel is marked where its centre lies in an odd number of turns
            of any of them.
    """

    path: Path
    marked: Array | None = None
    polygons: tuple[Array, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The shape as a profile keeps it: polygons, or the lengths of a mask's runs, the first of them unmarked."""
        if self.marked is None:
            return {"polygons": [corners.tolist() for corners in self.polygons]}
        flat = np.concatenate([[False], self.marked.reshape(-1)])
        ends = np.flatnonzero(np.diff(flat)).tolist()
        return {"size": list(self.marked.shape), "runs": np.diff([0, *ends, self.marked.size]).tolist()}

    def at(self, size: tuple[int, int], image: str) -> Array:
        """(H, W) bool of an image of `size`; `image` names it in messages."""
        if self.marked is None:
            return drawn(self.polygons, size)
        if self.marked.shape != size:
            (rows, columns), (height, width) = self.marked.shape, size
            raise KeepADError(
                f"the mask '{self.path}' has {columns} x {rows} pixels but {image} has {width} x {height}; give a mask "
                "at the size of the images, or polygons."
            )
        return self.marked


@dataclass(frozen=True, eq=False)
class Roi:
    """Where to look: inside of one shape, if there is one, and outside of another.

    Attributes:
        include: What is looked at; everything if None.
        exclude: What is left out even so.
    """

    include: Shape | None = None
    exclude: Shape | None = None

    def to_json(self) -> dict[str, Any]:
        """The region as a profile keeps it."""
        both = {"include": self.include, "exclude": self.exclude}
        return {name: None if shape is None else shape.to_json() for name, shape in both.items()}

    def at(self, size: tuple[int, int], image: str = "the image") -> Array:
        """(H, W) bool of an image of `size`, True where it is looked at.

        Raises:
            KeepADError: A mask has another size, or nothing is left; `image` names the image.
        """
        inside = np.ones(size, dtype=bool) if self.include is None else self.include.at(size, image)
        if self.exclude is not None:
            inside = inside & ~self.exclude.at(size, image)
        if not inside.any():
            raise KeepADError(f"the region of interest holds no pixel of {image}; draw it within the image.")
        return inside


def roi_from(stored: dict[str, Any]) -> Roi:
    """The region of interest that a profile keeps; a ValueError or TypeError where it is none."""
    return Roi(*(None if stored[name] is None else _shape_from(stored[name]) for name in ("include", "exclude")))


def _shape_from(stored: dict[str, Any]) -> Shape:
    name = Path("the profile's own")
    if "polygons" in stored:
        polygons = tuple(np.array(corners, dtype=np.float64) for corners in stored["polygons"])
        if not all(own.ndim == 2 and own.shape[1] == 2 and np.isfinite(own).all() for own in polygons):
            raise ValueError("a polygon has corners of two numbers each")
        return Shape(name, polygons=polygons)
    runs = np.array(stored["runs"], dtype=np.int64)
    height, width = stored["size"]
    # A few bytes of a file that lies must not become terabytes.
    if runs.min() < 0 or not runs.sum() == height * width <= MAX_PIXELS:
        raise ValueError("the runs of a mask do not fill its size")
    marked = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(stored["size"])
    return Shape(name, marked=marked)


def read_roi(roi: str | Path | None, ignore: str | Path | None = None) -> Roi | None:
    """The region of interest of a file of what to look at and a file of what to ignore; None without either.

    Raises:
        KeepADError: A file is neither a mask nor polygons.
    """
    if roi is None and ignore is None:
        return None
    return Roi(*(None if path is None else read_shape(Path(path)) for path in (roi, ignore)))


def read_shape(path: Path) -> Shape:
    """The pixels that a mask marks (every value above zero), or that lie in the polygons of a JSON file."""
    if not path.is_file():
        raise KeepADError(f"there is no file '{path}'; give a mask such as mask.png, or polygons such as polygon.json.")
    if path.suffix.lower() == ".json":
        return Shape(path, polygons=_polygons(path))
    try:
        with opened(path) as image:
            single = image.mode in ("1", "L") or image.mode[0] in "IF"
            values = np.asarray(image if single else image.convert("RGB"))
    except Exception as error:  # Pillow's parsers agree on no single exception
        raise KeepADError(
            f"'{path}' is no mask that can be read; save it as PNG, or give polygons as .json."
        ) from error
    marked = values > 0 if values.ndim == 2 else (values > 0).any(axis=2)
    if not marked.any():
        raise KeepADError(f"the mask '{path}' is black throughout; paint what it marks in white.")
    return Shape(path, marked=np.asarray(marked))


def _polygons(path: Path) -> tuple[Array, ...]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KeepADError(f"'{path}' is not JSON that can be read; write {_FORM}.") from error
    if isinstance(content, dict):
        content = content.get("polygons")
    try:
        flat = np.ndim(content[0][0]) == 0
        polygons = [np.asarray(corners, dtype=np.float64) for corners in ([content] if flat else content)]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise KeepADError(f"'{path}' holds no polygons; write {_FORM}.") from error
    for corners in polygons:
        if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
            raise KeepADError(f"'{path}' holds a polygon without three corners of two numbers each; write {_FORM}.")
    return tuple(polygons)


def drawn(polygons: tuple[Array, ...], size: tuple[int, int]) -> Array:
    """(H, W) bool, True for pixels whose centre lies in any of the polygons, (k, 2) x, y; even-odd within each."""
    marked = np.zeros(size, dtype=bool)
    for corners in polygons:
        (x0, y0), (x1, y1) = corners.T[:, None], np.roll(corners, -1, axis=0).T[:, None]
        first, last = (int(np.clip(edge, 0, size[0])) for edge in (np.floor(y0.min()), np.ceil(y0.max())))
        for row in range(first, last):
            y = row + 0.5
            crossed = (y0 <= y) != (y1 <= y)
            x = np.sort(x0[crossed] + (y - y0[crossed]) / (y1 - y0)[crossed] * (x1 - x0)[crossed])
            for left, right in zip(np.ceil(x[::2] - 0.5), np.ceil(x[1::2] - 0.5), strict=True):
                marked[row, max(0, int(left)) : max(0, int(right))] = True
    return marked


def painted(image: Image.Image, inside: Array) -> Image.Image:
    """The image with one colour outside, the mean of what is inside, so that no other pixel can leak in by resizing."""
    pixels = np.array(image)
    pixels[~inside] = np.rint(pixels[inside].mean(axis=0)).astype(np.uint8)
    return Image.fromarray(pixels)


def shrunk(
    inside: Array, size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> tuple[Array, Array]:
    """(h, w) bool of pixels that hold any of the inside, and of those that hold nothing else, at another size.

    Args:
        inside: (H, W) bool.
        size: Height and width.
        box: Left, top, right and bottom of the part that is taken; all of it if None.
    """
    height, width = size
    cover = Image.fromarray(inside.astype(np.float32))
    some, weight = (
        np.asarray(cover.resize((width, height), kind, box=box))
        for kind in (Image.Resampling.BOX, Image.Resampling.BICUBIC)
    )
    return some > 0, np.abs(weight - 1) < 1e-5


def within_reach(roi: Array, size: tuple[int, int]) -> Array:
    """(h, w) bool of the pixels at another size that hold any of the region, or lie beside one that does."""
    reach: Array = ndimage.binary_dilation(shrunk(roi, size)[0], structure=np.ones((3, 3), dtype=bool))
    return reach


def continued(pixels: Array, pure: Array) -> Array:
    """(H, W, 3) pixels of which those outside of `pure` have the colour of the nearest within; no edge arises."""
    if pure.all() or not pure.any():
        return pixels
    rows, columns = ndimage.distance_transform_edt(~pure, return_distances=False, return_indices=True)
    nearest: Array = pixels[rows, columns]
    return nearest


@lru_cache(maxsize=2)
def roi_at(roi: Roi, size: tuple[int, int], image: str) -> Array:
    """`roi.at`, kept for images of the same size."""
    return roi.at(size, image)
