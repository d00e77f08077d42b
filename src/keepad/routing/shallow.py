"""Shallow router: one token of every block stays (coverage), the rest of the budget goes by score (rescue)."""

from __future__ import annotations

import zlib

import numpy as np

from keepad.arrays import Array
from keepad.presets import ShallowBudget
from keepad.routing.grid import Grid, block_ids, cell_ids, first_of_each


def shallow_target(rho: float, grid: Grid) -> int:
    """Tokens that a share rho of the whole grid means, rounded half to even: 958, 684, 411 on 37x37."""
    return round(rho * grid[0] * grid[1])


def shuffled(positions: Array, seed: int, scores: Array) -> Array:
    """The positions in random order; the image's scores decide it, so that it does not depend on other images."""
    random = np.random.default_rng([seed, zlib.crc32(np.ascontiguousarray(scores).tobytes())])
    return random.permutation(positions)


def keep_shallow(
    scores: Array,
    cells: Array,
    grid: Grid,
    budget: ShallowBudget,
    counted: int | None = None,
    smoothed: Array | None = None,
) -> Array:
    """Positions of the tokens of one image that stay, ascending.

    Ties go to the lower grid index.

    Args:
        scores: (n,) visual scores of the live tokens; coverage goes by them, so that a defect of one patch stays.
        cells: (n,) their grid indices, ascending.
        grid: Rows and columns.
        budget: Coverage and rescue.
        counted: Cells of which the budget is a share; all of the grid if None.
        smoothed: (n,) the scores smoothed on the grid; rescue goes by them. The scores themselves if None.
    """
    order = np.argsort(-scores, kind="stable")  # from here on, tokens are known by their rank
    winners = first_of_each(block_ids(cells, grid, budget.block)[order])
    whole = counted is None or counted == grid[0] * grid[1]
    target = min(shallow_target(budget.rho, grid if whole else (counted or 0, 1)), len(scores))
    if len(winners) >= target and not budget.strict:
        return np.sort(order[np.sort(winners)[:target]])
    covered = np.zeros(len(scores), dtype=bool)
    covered[order[winners]] = True
    residual = target - len(winners)
    if smoothed is not None:
        order = np.argsort(-smoothed, kind="stable")
    kept = covered[order]
    if residual > 0 and budget.seed is not None:
        kept[shuffled(np.flatnonzero(~kept), budget.seed, scores)[:residual]] = True
    elif residual > 0:
        dropped = np.flatnonzero(~kept)
        best = first_of_each(cell_ids(cells[order[dropped]], grid, budget.cells))
        kept[dropped[np.sort(best)[: min(budget.diversity, residual)]]] = True
        rest = np.flatnonzero(~kept)
        kept[rest[: target - int(kept.sum())]] = True
    return np.sort(order[kept])
