"""Pixel router: drops patches that the pixels prove redundant, before block 1.

Where all pixels of a block of patches lie within a few grey levels of each other, one token represents the block. Each
dropped patch carries a bound on its largest pixel difference to the patch that represents it. The bound is over single
pixels, not statistics: one deviating pixel keeps the patch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keepad.arrays import Array
from keepad.presets import PixelBudget
from keepad.routing.grid import block_ids

_BEYOND = 10_000  # grey levels
_QUIET = 0.1  # share of the patches with the smallest range, which estimate sensor noise


@dataclass(frozen=True)
class PixelRouting:
    """Decision of the pixel router for one image.

    Attributes:
        index: (n,) grid indices of the patches that stay, ascending.
        owner: (N,) the patch whose token each cell uses; itself where it stays, -1 for cells that do not count.
        bound: (N,) grey levels by which any pixel of a cell may differ, in any channel, from any pixel of its owner; 0
            where it stays.
    """

    index: Array
    owner: Array
    bound: Array

    @property
    def whole(self) -> bool:
        """Whether every patch stays."""
        return len(self.index) == len(self.owner)

    @property
    def cells(self) -> Array:
        """(m,) grid indices of the cells that count, ascending; all of them unless some were left out."""
        return np.flatnonzero(self.owner >= 0)

    @property
    def merges(self) -> bool:
        """Whether any cells share a token."""
        return len(self.index) < len(self.cells)

    @property
    def token(self) -> Array:
        """(m,) position in `index` of the token of each cell that counts."""
        return np.searchsorted(self.index, self.owner[self.cells])

    @property
    def size(self) -> Array:
        """(n,) cells per token, its own included."""
        return np.bincount(self.owner[self.cells], minlength=len(self.owner))[self.index].astype(np.float32)

    @staticmethod
    def of_all(inside: Array) -> PixelRouting:
        """The decision that every cell where `inside`, (N,) bool, has its own token and no other counts."""
        cells = np.arange(len(inside))
        return PixelRouting(cells[inside], np.where(inside, cells, -1), np.zeros(len(cells), dtype=np.int16))


def route_pixels(
    pixels: Array, patch: tuple[int, int], budget: PixelBudget, inside: Array | None = None
) -> PixelRouting:
    """One patch of every uniform block stays, and every other patch.

    Args:
        pixels: (H, W, 3) uint8 in whole patches.
        patch: Height and width of a patch.
        budget: Block sizes and tolerances.
        inside: (N,) bool, the cells that count, or None for all; the others have no token, and blocks are as uniform as
            what counts of them.
    """
    high, low = extremes(pixels, patch)
    rows, columns, _ = high.shape
    cell = np.arange(rows * columns)
    owner, free = cell.reshape(rows, columns).copy(), np.ones((rows, columns), dtype=bool)
    within = np.ones((rows, columns), dtype=bool) if inside is None else inside.reshape(rows, columns)
    noise = budget.noise * _noise(high[within], low[within]) if budget.noise else 0
    high[~within], low[~within] = -_BEYOND, _BEYOND  # no part of the extremes of their blocks
    for side, tolerance in budget.blocks:
        uniform = _span(high, low, side) <= tolerance + noise
        if not uniform.any():
            continue
        taken = uniform.repeat(side, 0).repeat(side, 1)[:rows, :columns] & free
        owner[taken] = _owners(cell.reshape(rows, columns), side, taken & within)[taken]
        free &= ~taken
    owner, bound = owner.reshape(-1), np.zeros(rows * columns, dtype=np.int16)
    stays = owner == cell
    dropped = np.flatnonzero(~stays)
    if len(dropped):
        high, low, theirs = high.reshape(-1, 3), low.reshape(-1, 3), owner[dropped]
        bound[dropped] = np.maximum(high[dropped] - low[theirs], high[theirs] - low[dropped]).max(1)
    if inside is not None:
        owner[~inside] = -1
        stays &= inside
    return PixelRouting(np.flatnonzero(stays), owner, bound)


def extremes(pixels: Array, patch: tuple[int, int]) -> tuple[Array, Array]:
    """(rows, columns, 3) highest and lowest value of each channel in each patch."""
    height, width, _ = pixels.shape
    rows, columns = height // patch[0], width // patch[1]
    lines = pixels.reshape(rows, patch[0], width * 3)  # along whole lines first: one pass over the bytes
    high, low = (_over_columns(best, best.reduce(lines, axis=1), columns) for best in (np.maximum, np.minimum))
    return high.astype(np.int16), low.astype(np.int16)


def _span(high: Array, low: Array, side: int) -> Array:
    """Largest difference within each block of side x side patches, over the channels; blocks may be cut at the end."""
    rows, columns, _ = high.shape
    # Pad incomplete blocks with their own last row and column.
    row = np.minimum(np.arange(rows + -rows % side), rows - 1)
    column = np.minimum(np.arange(columns + -columns % side), columns - 1)
    ends = []
    for best, values in ((np.maximum, high), (np.minimum, low)):
        lines = values[row][:, column].reshape(len(row) // side, side, len(column) * 3)
        ends.append(_over_columns(best, best.reduce(lines, axis=1), len(column) // side))
    span: Array = (ends[0] - ends[1]).max(-1)
    return span


def _over_columns(best: np.ufunc, lines: Array, columns: int) -> Array:
    """(rows, columns, 3) extremes of lines of pixels, (rows, width * 3), cut into so many equal parts."""
    parts = lines.reshape(len(lines), columns, -1, 3).transpose(2, 0, 1, 3)
    extremes: Array = best.reduce(np.ascontiguousarray(parts), axis=0)  # many times faster over an axis of its own
    return extremes


def _middle(cell: Array, side: int) -> Array:
    """(rows, columns) the patch nearest to the middle of each cell's block, its upper left one of equals."""
    rows, columns = cell.shape
    row = np.minimum(np.arange(rows) // side * side + (side - 1) // 2, rows - 1)
    column = np.minimum(np.arange(columns) // side * side + (side - 1) // 2, columns - 1)
    middle: Array = cell[row][:, column]
    return middle


def _owners(cell: Array, side: int, counted: Array) -> Array:
    """(rows, columns) the middle of each cell's block, or the first of its cells that count where the middle does not.

    Args:
        cell: (rows, columns) grid indices.
        side: Side of the blocks.
        counted: (rows, columns) bool, the cells of uniform blocks that count.
    """
    middle = _middle(cell, side)
    lost = counted & ~counted.reshape(-1)[middle]
    if lost.any():
        block = block_ids(cell, (len(cell), cell.shape[1]), side)
        ids, first = np.unique(block[lost], return_index=True)
        middle[lost] = cell[lost][first][np.searchsorted(ids, block[lost])]
    return middle


def _noise(high: Array, low: Array) -> float:
    """Range of the patches with the smallest range, in grey levels: an estimate of sensor noise."""
    return float(np.quantile((high - low).max(-1), _QUIET))
