"""Recovery: every grid cell takes the response of an owner among the survivors; features are never copied.

Owners are found in NumPy. Responses may be NumPy arrays (inference) or torch tensors (training, with gradients).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.routing.grid import Grid

if TYPE_CHECKING:
    from torch import Tensor

RECOVERIES = ("same_block_first", "nearest", "zero", "graded")
_CLIP = 1e-4  # responses are clipped to [_CLIP, 1 - _CLIP]; keeps logits finite

Values = TypeVar("Values", "Tensor", Array)


@dataclass(frozen=True)
class RouterScores(Generic[Values]):
    """Scores by which the routers dropped tokens of one image, for graded recovery.

    Attributes:
        shallow: (N,) standardised scores of the shallow router, or None where it did not run.
        live: (n,) grid indices of the cells that entered the deep router, ascending.
        risk: (n,) their standardised risks, or None where the deep router did not run.
    """

    shallow: Values | None
    live: Array
    risk: Values | None


def recover(
    responses: Values,
    survivors: Array,
    grid: Grid,
    *,
    mode: str,
    block: int = 2,
    scores: RouterScores[Values] | None = None,
    grades: tuple[float, float] = (0.0, 0.0),
) -> Values:
    """Responses on the whole grid, (rows, columns), from those of the survivors, (k,).

    Args:
        responses: (k,) responses of the survivors.
        survivors: (k,) their grid indices, ascending.
        grid: Rows and columns.
        mode: One of RECOVERIES; "graded" is "nearest" where `scores` are missing.
        block: Side of the blocks of "same_block_first".
        scores: Of the routers, for "graded".
        grades: Logits that one deviation of the shallow score, and of the risk, moves a copied response.
    """
    if mode not in RECOVERIES:
        raise KeepADError(f"there is no recovery called {mode!r}; choose one of {', '.join(RECOVERIES)}.")
    if len(survivors) == grid[0] * grid[1]:
        return responses.reshape(grid)
    if mode == "graded" and scores is not None:
        return _graded(responses, survivors, grid, scores, grades).reshape(grid)
    owner = owners_of(survivors, grid, block=block if mode == "same_block_first" else None)
    if mode == "zero":
        alive = np.zeros(grid[0] * grid[1], dtype=bool)
        alive[survivors] = True
        masked: Values = responses[owner] * _like(alive, responses)
        return masked.reshape(grid)
    return responses[owner].reshape(grid)


def _graded(
    responses: Values, survivors: Array, grid: Grid, scores: RouterScores[Values], grades: tuple[float, float]
) -> Values:
    """(N,) responses of the nearest survivors, shifted by the score difference between a cell and its owner.

    A plain copy paints a defect over its dropped neighbourhood, although the routers scored that neighbourhood lower.
    Survivors keep their own responses.
    """
    shallow_grade, deep_grade = grades
    values = _logit(responses)
    if len(survivors) < len(scores.live):
        owner = owners_of(survivors, grid, block=None)[scores.live]
        values = values[owner]
        if scores.risk is not None:
            position = np.searchsorted(scores.live, survivors)
            values = values + deep_grade * (scores.risk - scores.risk[position][owner])
    owner = owners_of(scores.live, grid, block=None)
    values = values[owner]
    if scores.shallow is not None:
        values = values + shallow_grade * (scores.shallow - scores.shallow[scores.live][owner])
    recovered: Values = _sigmoid(values)
    return recovered


def owners_of(survivors: Array, grid: Grid, *, block: int | None = 2) -> Array:
    """Position within `survivors` of the owner of each grid cell, (rows * columns,).

    A survivor owns itself. Any other cell belongs to the nearest survivor of its own block (unless `block` is None),
    else to the nearest survivor anywhere; Euclidean on the grid, ties to the lower grid index.

    Args:
        survivors: (k,) grid indices, ascending, at least one.
        grid: Rows and columns.
        block: Side of the blocks.
    """
    owner = _nearest(survivors, grid)
    if block is None:
        return owner
    position = np.full(grid[0] * grid[1] + 1, -1)  # the last entry stands for cells outside the grid
    position[survivors] = np.arange(len(survivors))
    mates = position[_block_mates(grid, block)]  # (cells, block * block), nearest mate first
    first = (mates >= 0).argmax(1)
    within = mates[np.arange(len(mates)), first]
    return np.where(within >= 0, within, owner)


def _nearest(survivors: Array, grid: Grid) -> Array:
    """Position of the nearest survivor of each cell: along every row first, then over the rows.

    Distance and grid index are packed into one integer, so that the minimum also breaks ties.
    """
    rows, columns = grid
    far = rows + columns  # farther than any cell of the grid
    # int32 where it holds the largest code: the passes over the codes are memory-bound
    integer = np.int32 if (columns + 2 * far) ** 2 * rows * columns < 2**31 else np.int64
    row, column = np.arange(rows, dtype=integer), np.arange(columns, dtype=integer)
    alive = np.zeros(grid, dtype=bool)
    alive.reshape(-1)[survivors] = True
    left = np.maximum.accumulate(np.where(alive, column, integer(-far)), axis=1)
    right = np.minimum.accumulate(np.where(alive, column, integer(columns + far))[:, ::-1], axis=1)[:, ::-1]
    closest = np.where(column - left <= right - column, left, right)  # (rows, columns): in each row, from each column
    index = row[:, None] * columns + np.clip(closest, 0, columns - 1)
    across = (closest - column) ** 2 * integer(rows * columns) + index
    down = (row[:, None] - row) ** 2 * integer(rows * columns)  # (row of the cell, row of the survivor)
    code = across[None] + down[:, :, None]  # (rows, rows, columns)
    position = np.empty(rows * columns, dtype=np.int64)
    position[survivors] = np.arange(len(survivors))
    owner: Array = position[code.min(1).reshape(-1) % (rows * columns)]
    return owner


@lru_cache(maxsize=32)
def _block_mates(grid: Grid, block: int) -> Array:
    """Cells of the block of each cell, (cells, block * block), nearest first, ties to the lower index."""
    rows, columns = grid
    cell = np.arange(rows * columns)
    row, column = cell // columns, cell % columns
    step = np.arange(block)
    mate_row = (row // block * block)[:, None, None] + step[:, None]
    mate_column = (column // block * block)[:, None, None] + step[None]
    distance = (mate_row - row[:, None, None]) ** 2 + (mate_column - column[:, None, None]) ** 2
    outside = (mate_row >= rows) | (mate_column >= columns)
    mate = np.where(outside, rows * columns, mate_row * columns + mate_column).reshape(len(cell), -1)
    key = np.where(outside, 2 * block * block, distance).reshape(len(cell), -1) * (rows * columns + 1) + mate
    mates: Array = np.take_along_axis(mate, key.argsort(1), 1)
    return mates


def on_grid(scores: Array, cells: Array, live: Array, grid: Grid) -> Array:
    """(N,) scores on the whole grid, from those of the cells that count; the others have that of their owner."""
    if len(cells) == grid[0] * grid[1]:
        return scores
    spread = np.zeros(grid[0] * grid[1], dtype=scores.dtype)
    spread[cells] = scores
    outside = np.ones(len(spread), dtype=bool)
    outside[cells] = False
    spread[outside] = spread[live][owners_of(live, grid, block=None)][outside]
    return spread


def smooth_scores(scores: Array, cells: Array, grid: Grid, sigma: float) -> Array:
    """(m,) scores of the cells that count, smoothed on the grid: a defect spans patches, the noise of a score does not.

    Args:
        scores: (m,) scores.
        cells: (m,) grid indices of the cells, ascending.
        grid: Rows and columns.
        sigma: Of the Gaussian, in patches; 0 returns the scores.
    """
    if sigma <= 0:
        return scores
    smoothed: Array = smooth(on_grid(scores, cells, cells, grid).reshape(grid), sigma).reshape(-1)[cells]
    return smoothed


class Upsampler:
    """Patch maps at pixel size: Gaussian smoothing on the patch grid, then bilinear interpolation.

    No large matrix products: NumPy's BLAS threads would spin on after one and slow the engine down on few cores.

    Args:
        grid: Rows and columns of the patch grid.
        size: Height and width, in whole patches.
        smoothing: Sigma of the Gaussian in patches; 0 is off.
    """

    def __init__(self, grid: Grid, size: tuple[int, int], smoothing: float) -> None:
        self._smoothing = smoothing
        self._patch = size[0] // grid[0], size[1] // grid[1]

    def __call__(self, patch_map: Array) -> Array:
        """(rows, columns) -> (H, W) float32 in [0, 1]."""
        smoothed = smooth(patch_map.astype(np.float32), self._smoothing)
        wide = _stretch(smoothed.T, self._patch[1]).T
        pixels = _stretch(np.ascontiguousarray(wide), self._patch[0])
        clipped: Array = np.clip(pixels, 0, 1, out=pixels)
        return clipped


def smooth(maps: Array, sigma: float) -> Array:
    """Separable Gaussian on (..., rows, columns), cut at four sigma, edges repeated; sigma 0 returns the maps."""
    if sigma <= 0:
        return maps
    down, across = (_gaussian(cells, sigma) for cells in maps.shape[-2:])
    smoothed: Array = np.einsum("...ic,jc->...ij", np.einsum("ir,...rc->...ic", down, maps), across)
    return smoothed


def _stretch(values: Array, patch: int) -> Array:
    """(cells * patch, m) lines interpolated between the centres of (cells, m); edges repeated."""
    cells, width = values.shape
    half = patch // 2
    share = (np.arange(patch, dtype=np.float32) + np.float32(half + 0.5)) / np.float32(patch) - np.float32(0.5)
    lines = np.empty((cells * patch, width), dtype=np.float32)
    lines[:half], lines[half + (cells - 1) * patch :] = values[0], values[-1]
    between = lines[half : half + (cells - 1) * patch].reshape(cells - 1, patch, width)
    np.multiply((values[1:] - values[:-1])[:, None], share[:, None], out=between)
    between += values[:-1, None]
    return lines


@lru_cache(maxsize=32)
def _gaussian(cells: int, sigma: float) -> Array:
    """(cells, cells) weights of a Gaussian cut at four sigma, edges repeated."""
    radius = max(1, int(4 * sigma + 0.5))
    offset = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offset / sigma) ** 2)
    weights = np.zeros((cells, cells), dtype=np.float32)
    for step, weight in zip(offset, kernel / kernel.sum(), strict=True):
        np.add.at(weights, (np.arange(cells), np.clip(np.arange(cells) + step, 0, cells - 1)), weight)
    return weights


def _logit(values: Any) -> Any:
    clipped = values.clip(_CLIP, 1 - _CLIP)
    return np.log(clipped / (1 - clipped)) if isinstance(values, np.ndarray) else clipped.logit()


def _sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values)) if isinstance(values, np.ndarray) else values.sigmoid()


def _like(mask: Array, values: Any) -> Any:
    """The mask as the kind of array that `values` is."""
    return mask if isinstance(values, np.ndarray) else values.new_tensor(mask)
