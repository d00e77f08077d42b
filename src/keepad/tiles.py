"""Tiles of a large photograph: where they lie, how they are cut, and how their maps become one without seams.

The photograph has one grid of patches, of which every tile is a window; so maps are blended patch by patch and
interpolated to pixels once, like the map of a single input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.roi import continued, painted, shrunk

Grid = tuple[int, int]

_ONE_TILE = 1.5  # times the input's side, up to which `auto` takes an image as one tile
_OVERLAP = 2  # patches that neighbours share if nothing is said


@dataclass(frozen=True)
class Tiling:
    """How large images are cut.

    Attributes:
        size: Pixels of the image along the longer side of a tile; None cuts at native resolution, and images of up to
            one and a half times the input's sides not at all.
        overlap: Pixels of the image that neighbouring tiles share at least; two patches if None.
    """

    size: int | None = None
    overlap: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise KeepADError(f"a tile has a side of at least one pixel, not {self.size}.")
        if self.overlap is not None and self.overlap < 0:
            raise KeepADError(f"tiles cannot overlap by {self.overlap} pixels; give 0 or more.")


def tiling_of(tiles: str | int | None, overlap: int | None = None) -> Tiling | None:
    """The tiling that was asked for as "auto" or as a side in pixels; None without one."""
    if tiles is None:
        if overlap is not None:
            raise KeepADError("--overlap belongs to --tiles; add --tiles auto, or leave it out.")
        return None
    if tiles == "auto":
        return Tiling(None, overlap)
    if not str(tiles).isdecimal() or not int(tiles):
        raise KeepADError(f"tiles are auto or have a side in pixels such as 1036, not {tiles!r}.")
    return Tiling(int(tiles), overlap)


@dataclass(frozen=True)
class TilePlan:
    """The tiles of one photograph.

    Attributes:
        scale: Pixels of the network's input per pixel of the photograph.
        size: Height and width of the photograph at that scale.
        grid: Rows and columns of its grid; the last ones may lie partly outside.
        tile: Rows and columns of a tile's grid.
        patch: Height and width of a patch.
        rows: First and last row, exclusive, of the tiles along the height.
        columns: The same of the columns along the width.
    """

    scale: float
    size: tuple[int, int]
    grid: Grid
    tile: Grid
    patch: tuple[int, int]
    rows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """Row and column of the first cell of each tile, from the top left."""
        return tuple((row, column) for row, _ in self.rows for column, _ in self.columns)

    def window(self, corner: tuple[int, int]) -> tuple[slice, slice]:
        """Rows and columns of the photograph's grid that a tile covers; the rest of its input is not used."""
        return slice(corner[0], dict(self.rows)[corner[0]]), slice(corner[1], dict(self.columns)[corner[1]])

    def cells(self, corner: tuple[int, int]) -> Array:
        """(N,) grid index on the photograph of each cell of a tile, -1 for those that it does not use."""
        rows, columns = self.window(corner)
        index = np.full(self.tile, -1)
        used = np.arange(rows.start, rows.stop)[:, None] * self.grid[1] + np.arange(columns.start, columns.stop)
        index[: used.shape[0], : used.shape[1]] = used
        return index.reshape(-1)


def plan_tiles(
    size: tuple[int, int], input_size: tuple[int, int], patch: tuple[int, int], tiling: Tiling
) -> TilePlan | None:
    """The tiles of an image of `size`, or None where one tile holds it and it is taken whole.

    Args:
        size: Height and width of the image.
        input_size: Height and width of the network's input.
        patch: Height and width of a patch.
        tiling: How it is cut.
    """
    scale = 1.0 if tiling.size is None else max(input_size) / tiling.size
    if scale > 1:
        raise KeepADError(
            f"tiles of {tiling.size} pixels would be enlarged to the network's input of {max(input_size)}; give "
            f"--tiles auto, or at least {max(input_size)}."
        )
    scaled = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    room = _ONE_TILE if tiling.size is None else 1.0
    if all(own <= room * inner for own, inner in zip(scaled, input_size, strict=True)):
        return None
    overlap = [_OVERLAP if tiling.overlap is None else ceil(tiling.overlap * scale / side) for side in patch]
    tile = input_size[0] // patch[0], input_size[1] // patch[1]
    for shared, cells, side in zip(overlap, tile, patch, strict=True):
        if 2 * shared > cells:
            most = floor(cells // 2 * side / scale)
            raise KeepADError(f"tiles may overlap by half at most, which is {most} pixels here, not {tiling.overlap}.")
    grid = -(-scaled[0] // patch[0]), -(-scaled[1] // patch[1])
    rows, columns = (_spans(*axis) for axis in zip(grid, tile, overlap, strict=True))
    return TilePlan(scale, scaled, grid, tile, patch, rows, columns)


def _spans(cells: int, tile: int, overlap: int) -> tuple[tuple[int, int], ...]:
    """First and last cell, exclusive, of as few tiles as cover all cells and share `overlap` with their neighbours.

    They are equally long, to a cell: no cell is in two tiles but for the overlap.
    """
    count = max(1, -(-(cells - overlap) // (tile - overlap)))
    whole = cells + overlap * (count - 1)  # cells of all tiles together
    ends = [(number + 1) * whole // count - number * overlap for number in range(count)]
    starts = [0, *(end - overlap for end in ends[:-1])]
    return tuple(zip(starts, ends, strict=True))


@dataclass(frozen=True)
class Tile:
    """A tile as the network takes it.

    Attributes:
        corner: Row and column of its first cell on the photograph's grid.
        pixels: (H, W, 3) uint8; beyond what the tile uses, its last row and column go on.
        inside: (N,) bool, the cells that count, or None where all do.
    """

    corner: tuple[int, int]
    pixels: Array
    inside: Array | None


def cut(picture: Image.Image, plan: TilePlan, corner: tuple[int, int], roi: Array | None = None) -> Tile | None:
    """A tile of a photograph; None where nothing of it is looked at.

    Args:
        picture: The photograph, in any mode that converts to RGB.
        plan: Its tiles.
        corner: First cell of the tile.
        roi: (height, width) bool, where the photograph is looked at; pixels elsewhere never enter.
    """
    window = plan.window(corner)
    first = [span.start * side for span, side in zip(window, plan.patch, strict=True)]
    last = [min(span.stop * side, end) for span, side, end in zip(window, plan.patch, plan.size, strict=True)]
    size = last[0] - first[0], last[1] - first[1]
    ratio = picture.width / plan.size[1], picture.height / plan.size[0]
    box = first[1] * ratio[0], first[0] * ratio[1], last[1] * ratio[0], last[0] * ratio[1]
    margin = 0 if plan.scale == 1 else ceil(2 * max(ratio)) + 1  # reach of the interpolation
    outer = (
        max(0, floor(box[0]) - margin),
        max(0, floor(box[1]) - margin),
        min(picture.width, ceil(box[2]) + margin),
        min(picture.height, ceil(box[3]) + margin),
    )
    part = picture.crop(outer).convert("RGB")
    some = pure = np.ones(size, dtype=bool)
    own = None if roi is None else roi[outer[1] : outer[3], outer[0] : outer[2]]
    if own is not None and not own.all():
        if not own.any():
            return None
        part = painted(part, own)
        exact = own if plan.scale == 1 else None
        some, pure = (exact, exact) if exact is not None else _shrunk_part(own, box, outer, size)
        if not some.any():
            return None
    if plan.scale != 1:
        local = (box[0] - outer[0], box[1] - outer[1], box[2] - outer[0], box[3] - outer[1])
        part = part.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=local)
    pixels = continued(np.asarray(part), pure)
    beyond = [(0, cells * side - own) for cells, side, own in zip(plan.tile, plan.patch, size, strict=True)]
    pixels = np.pad(pixels, [*beyond, (0, 0)], mode="edge")
    held = np.pad(some, beyond).reshape(plan.tile[0], plan.patch[0], plan.tile[1], plan.patch[1]).any(axis=(1, 3))
    return Tile(corner, np.ascontiguousarray(pixels), None if held.all() else held.reshape(-1))


def _shrunk_part(
    inside: Array, box: tuple[float, float, float, float], outer: tuple[int, int, int, int], size: tuple[int, int]
) -> tuple[Array, Array]:
    """`roi.shrunk` of a part of a mask, cut as the pixels are."""
    local = (box[0] - outer[0], box[1] - outer[1], box[2] - outer[0], box[3] - outer[1])
    return shrunk(inside, size, local)


@dataclass(frozen=True)
class TileReport:
    """What the tiles of a photograph cost.

    Attributes:
        tiles: Number of tiles, without those of which nothing is looked at.
        plain: Of these, the number that the pixels prove uniform; they are not computed, and the map of the whole
            photograph fills them.
        scale: Pixels of the network's input per pixel of the photograph.
        tile: Rows and columns of a tile's grid.
        cells: Cells of all tiles, those that lie in two counted twice.
        entered: Tokens that entered the first block.
        shallow: Tokens that left the shallow router.
        final: Tokens that left the deep router.
    """

    tiles: int
    plain: int
    scale: float
    tile: tuple[int, int]
    cells: int
    entered: int
    shallow: int
    final: int


def blended(plan: TilePlan, maps: Iterable[tuple[tuple[int, int], Array]]) -> Array:
    """(rows, columns) one map of the photograph, from the (rows, columns) map of each tile, by its corner.

    Where tiles overlap, each counts the more the farther it reaches beyond; no border of a tile shows.
    """
    total, weight = np.zeros(plan.grid), np.zeros(plan.grid)
    # Summed in the order of the corners, so that the order in which tiles come does not matter.
    for corner, own in sorted(maps, key=lambda pair: pair[0]):
        rows, columns = plan.window(corner)
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        share = _ramp(high)[:, None] * _ramp(wide)
        total[rows, columns] += share * own[:high, :wide]
        weight[rows, columns] += share
    result: Array = np.divide(total, weight, out=np.zeros(plan.grid), where=weight > 0).astype(np.float32)
    return result


def _ramp(cells: int) -> Array:
    """(cells,) weight of a tile along one axis: rises from its border to its middle."""
    from_border: Array = np.minimum(np.arange(cells), np.arange(cells)[::-1]) + 1.0
    return from_border


def sampled(patch_map: Array, plan: TilePlan) -> Array:
    """(rows, columns) of the photograph's grid, from the map of the whole photograph at another scale."""
    for axis in (0, 1):
        cells = patch_map.shape[axis]
        centre = (np.arange(plan.grid[axis]) + 0.5) * plan.patch[axis] / plan.size[axis] * cells - 0.5
        centre = np.clip(centre, 0, cells - 1)
        lower = np.minimum(centre.astype(np.int64), max(cells - 2, 0))
        upper = np.minimum(lower + 1, cells - 1)
        share = (centre - lower).reshape((-1, 1) if axis == 0 else (1, -1))
        patch_map = patch_map.take(lower, axis) * (1 - share) + patch_map.take(upper, axis) * share
    return patch_map.astype(np.float32)
