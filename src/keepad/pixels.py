"""Pixel router: what the pixels prove redundant, before anything is computed of it. Nothing here needs torch.

Where all pixels of neighbouring patches lie within a few grey levels of each other, one token can stand for all of
them: nothing is hidden there, whatever the network thinks. The proof travels with the result as a bound for each
dropped patch, and it is about the pixels, not about statistics of them: a single deviating pixel breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from keepad.presets import PixelBudget

_QUIET = 0.1  # share of the patches, the quietest ones, that tells how noisy the sensor is


@dataclass(frozen=True)
class Thinned:
    """What the pixel router decided for one image.

    Attributes:
        index: (n,) grid indices of the patches that stay, ascending.
        owner: (N,) the patch that stands for each cell; itself where it stays.
        bound: (N,) grey levels by which any pixel of a cell may differ, in any channel, from any pixel of its owner; 0
            where it stays.
    """

    index: np.ndarray
    owner: np.ndarray
    bound: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether every patch stays."""
        return len(self.index) == len(self.owner)

    @property
    def place(self) -> np.ndarray:
        """(N,) position in `index` of the patch that stands for each cell."""
        return np.searchsorted(self.index, self.owner)

    @property
    def mass(self) -> np.ndarray:
        """(n,) cells that each patch that stays stands for, itself included."""
        return np.bincount(self.owner, minlength=len(self.owner))[self.index].astype(np.float32)


def thin(pixels: np.ndarray, patch: tuple[int, int], budget: PixelBudget) -> Thinned:
    """Every patch stays but those that have the same pixels as another one of their block, which stands for them.

    In each block one patch stands for all that are like it, if these are most of the block. It is the one that the most
    are like; of equals, the one nearest to the middle.

    Args:
        pixels: (H, W, 3) uint8 in whole patches.
        patch: Height and width of a patch.
        budget: What counts as the same.
    """
    high, low = extremes(pixels, patch)
    grid = high.shape[:2]
    high, low = high.reshape(-1, 3), low.reshape(-1, 3)
    span = (high - low).max(1)
    noise = budget.noise * float(np.quantile(span, _QUIET)) if budget.noise else 0.0
    cell = np.arange(len(span))
    owner, free = cell.copy(), np.ones(len(span), dtype=bool)
    for side, grey_levels in budget.blocks:
        tolerance = grey_levels + noise
        blocks, least = _blocks(grid, side, budget.most)  # (b, side * side), the middle first; -1 is outside
        quiet = ((span <= tolerance) & free)[blocks] & (blocks >= 0)
        some = quiet.sum(1) >= least
        best, joined = _alike(high[blocks[some]], low[blocks[some]], quiet[some], tolerance, least[some])
        members = blocks[some]
        owner[members[joined]] = np.repeat(members[np.arange(len(members)), best], joined.sum(1))
        free[members[joined]] = False
    bound = np.maximum(high - low[owner], high[owner] - low).max(1)
    bound[owner == cell] = 0
    return Thinned(np.flatnonzero(owner == cell), owner, bound)


def _alike(
    high: np.ndarray, low: np.ndarray, quiet: np.ndarray, tolerance: float, least: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(b,) the patch of each block that the most are like, and (b, n) which ones are, if these are enough.

    Args:
        high: (b, n, 3) highest values of the patches of each block.
        low: (b, n, 3) lowest values.
        quiet: (b, n) patches that may be like others at all.
        tolerance: Grey levels within which two patches must lie.
        least: (b,) how many must be alike.
    """
    top = np.where(quiet[..., None], high, 0).max(1, initial=0)
    bottom = np.where(quiet[..., None], low, 255).min(1, initial=255)
    best, joined = quiet.argmax(1), quiet.copy()  # where all are alike, the first one, and nothing needs to be compared
    rest = np.flatnonzero((top - bottom).max(1, initial=0) > tolerance)
    high, low, quiet = high[rest], low[rest], quiet[rest]
    alike = quiet[:, :, None] & quiet[:, None]  # (b, n, n) pairs that lie within the tolerance, all pixels together
    for channel in range(3):
        most = np.maximum(high[:, :, None, channel], high[:, None, :, channel])
        alike &= most - np.minimum(low[:, :, None, channel], low[:, None, :, channel]) <= tolerance
    found = alike.sum(2)
    best[rest] = found.argmax(1) if len(rest) else 0
    chosen = np.arange(len(rest)), best[rest]
    joined[rest] = alike[chosen] & (found[chosen] >= least[rest])[:, None]
    return best, joined


def extremes(pixels: np.ndarray, patch: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns, 3) highest and lowest value of each channel in each patch."""
    height, width, _ = pixels.shape
    rows, columns = height // patch[0], width // patch[1]
    lines = pixels.reshape(rows, patch[0], width * 3)  # along whole lines first: that is one pass over the bytes
    found = []
    for best in (np.maximum, np.minimum):
        across = best.reduce(lines, axis=1).reshape(rows, columns, patch[1], 3)
        found.append(best.reduce(across, axis=2).astype(np.int16))
    return found[0], found[1]


@lru_cache(maxsize=16)
def _blocks(grid: tuple[int, int], side: int, most: float) -> tuple[np.ndarray, np.ndarray]:
    """Cells of each block of side x side, (b, side * side), and how many must be alike, (b,).

    The cell nearest to the middle comes first, the lower one of equals; blocks may be cut at the end of the grid, and
    -1 stands for what lies outside.
    """
    rows, columns = grid
    step = np.arange(side)
    row = np.arange(0, rows, side)[:, None, None, None] + step[:, None]
    column = np.arange(0, columns, side)[:, None, None] + step
    cells = np.where((row < rows) & (column < columns), row * columns + column, -1).reshape(-1, side * side)
    middle = (side - 1) / 2
    order = np.argsort(((step - middle)[:, None] ** 2 + (step - middle) ** 2).reshape(-1), kind="stable")
    inside = (cells >= 0).sum(1)
    return cells[:, order], np.maximum(2, np.ceil(most * inside))
